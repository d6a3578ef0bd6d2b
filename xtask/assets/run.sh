#!/usr/bin/env bash
# Runs Tokenyard's conformance suite on this machine's GPU and writes a record of it.
#
#   ./run.sh [--sanitizer] [--demo] [--bench] [--peers WHEELS] [RECORD_DIR]
#
#   --sanitizer   afterwards, again under compute-sanitizer: memcheck, racecheck, synccheck
#   --demo        afterwards, `xtask run` on the GPU; its pictures and files go to RECORD_DIR/demo
#   --bench       afterwards, `xtask bench quantize --suite all`; its record and pictures go to
#                 RECORD_DIR/bench
#   --peers       afterwards, public quantizers and this one on the same bytes, from the folder WHEELS
#                 of their packages; see peers.py. Results go to RECORD_DIR/peers
#   RECORD_DIR    where record.json and the logs go; "record" in the current folder otherwise
#
# Needs an NVIDIA driver, and for --sanitizer the program compute-sanitizer on PATH, below
# $CUDA_HOME, or named by $COMPUTE_SANITIZER. The exit status is 0 only if nothing failed.
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
sanitizer=no
demo=no
bench=no
peers=
record=record
while [ $# -gt 0 ]; do
    case $1 in
        --sanitizer) sanitizer=yes ;;
        --demo) demo=yes ;;
        --bench) bench=yes ;;
        --peers)
            peers=${2:-}
            if [ ! -d "$peers" ]; then
                echo "--peers needs a folder of packages; see --help" >&2
                exit 2
            fi
            shift
            ;;
        -h | --help)
            sed -n '2,16s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
            exit 0
            ;;
        -*)
            echo "unknown option $1; see --help" >&2
            exit 2
            ;;
        *) record=$1 ;;
    esac
    shift
done
mkdir -p "$record" || exit 2

# Every case on the GPU must run: none may be skipped for want of one.
export TOKENYARD_REQUIRE_CUDA=1
export TOKENYARD_TEST_DATA="$here/data"

if ! "$here/conformance" --list >/dev/null 2>"$record/start.log"; then
    cat "$record/start.log" >&2
    echo "the test binary does not start here; bundle.json says which glibc it needs" >&2
    exit 2
fi
rm -f "$record/start.log"

# A text as a JSON string.
quoted() {
    printf '"%s"' "$(printf %s "$1" | tr -d '\000-\037' | sed 's/[\\"]/\\&/g')"
}

# One property of the first GPU, as nvidia-smi tells it.
gpu_property() {
    nvidia-smi --query-gpu="$1" --format=csv,noheader --id=0 2>/dev/null | head -n 1
}

date=$(date -u +%Y-%m-%dT%H:%M:%SZ)
gpu=$(gpu_property name)
capability=$(gpu_property compute_cap)
memory=$(gpu_property memory.total)
driver=$(gpu_property driver_version)
echo "Date:    $date"
echo "GPU:     ${gpu:-unknown}, compute capability ${capability:-unknown}, ${memory:-unknown memory}"
echo "Driver:  ${driver:-unknown}"

steps=""
status=0

# step NAME COMMAND...: runs a command, keeps its output in NAME.log, and notes how it went.
step() {
    local name=$1 log=$record/$1.log began=$SECONDS code counts errors=null
    shift
    echo
    echo "== $name: $*"
    "$@" 2>&1 | tee "$log"
    code=${PIPESTATUS[0]}
    [ "$code" -eq 0 ] || status=1
    # The suite's last line: N passed, N failed, N skipped.
    counts=$(sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed, \([0-9]*\) skipped$/\
"passed": \1, "failed": \2, "skipped": \3, /p' "$log" | tail -n 1)
    # compute-sanitizer's last line.
    if grep -q 'ERROR SUMMARY:\|RACECHECK SUMMARY:' "$log"; then
        errors=$(sed -n 's/.*ERROR SUMMARY: \([0-9]*\) error.*/\1/p; s/.*RACECHECK SUMMARY: \([0-9]*\) hazard.*/\1/p' \
            "$log" | tail -n 1)
    fi
    steps+="${steps:+,}
    {\"name\": $(quoted "$name"), ${counts}\"sanitizer_errors\": ${errors:-null}, \"exit_status\": $code, \"seconds\": $((SECONDS - began))}"
}

step conformance "$here/conformance" cuda:: --test-threads=1

if [ "$sanitizer" = yes ]; then
    tool=${COMPUTE_SANITIZER:-$(command -v compute-sanitizer)}
    for candidate in "${CUDA_HOME:-/usr/local/cuda}"/bin/compute-sanitizer \
        "${CUDA_HOME:-/usr/local/cuda}"/compute-sanitizer/compute-sanitizer; do
        [ -n "$tool" ] || { [ -x "$candidate" ] && tool=$candidate; }
    done
    if [ -z "$tool" ]; then
        echo "compute-sanitizer was not found" >&2
        status=1
    else
        # Every access costs a hundred times as much here, so one seed must do. Left out are the cases
        # that fault on purpose.
        left_out="--skip faults::"
        export TOKENYARD_SEEDS=1
        for check in memcheck racecheck synccheck; do
            # The suite makes the driver refuse calls on purpose (out of memory, for one) and looks at
            # what it says; memcheck would count each as an error of the program.
            api=()
            [ "$check" != memcheck ] || api=(--report-api-errors no)
            # shellcheck disable=SC2086 # the last is a list of words
            step "$check" "$tool" --tool "$check" "${api[@]}" --error-exitcode 99 \
                "$here/conformance" cuda:: --test-threads=1 $left_out
        done
        unset TOKENYARD_SEEDS
    fi
fi

if [ "$demo" = yes ]; then
    step demo "$here/xtask" run --backend cuda --out "$record/demo"
fi

if [ "$bench" = yes ]; then
    step bench "$here/xtask" bench quantize --suite all --records "$here/records" --out "$record/bench"
fi

if [ -n "$peers" ]; then
    step peers python3 "$here/peers.py" --xtask "$here/xtask" --wheels "$peers" --out "$record/peers"
fi

{
    echo "{"
    echo "  \"date\": $(quoted "$date"),"
    echo "  \"gpu\": $(quoted "$gpu"),"
    echo "  \"compute_capability\": $(quoted "$capability"),"
    echo "  \"memory\": $(quoted "$memory"),"
    echo "  \"driver\": $(quoted "$driver"),"
    echo "  \"kernel\": $(quoted "$(uname -sr)"),"
    echo "  \"bundle\": $(cat "$here/bundle.json"),"
    echo "  \"steps\": [$steps"
    echo "  ]"
    echo "}"
} >"$record/record.json"

echo
echo "Record:  $record/record.json"
exit $status
