#!/usr/bin/env bash
# Runs Tokenyard's conformance suite on this machine's GPU and writes a record of it.
#
#   ./run.sh [--sanitizer] [--demo] [--bench] [--ep] [--peers WHEELS] [RECORD_DIR]
#   ./run.sh --ep-only [RECORD_DIR]
#
#   --sanitizer   afterwards, again under compute-sanitizer: memcheck, racecheck, synccheck
#   --demo        afterwards, `xtask run` on the GPU; its pictures and files go to RECORD_DIR/demo
#   --bench       afterwards, `xtask bench quantize --suite all`; its record and pictures go to
#                 RECORD_DIR/bench
#   --ep          afterwards, `xtask bench ep` with 8 ranks on one GPU; and on all GPUs of the machine, up
#                 to eight, with a rank each, in one process and in one each, and with 8 ranks. Records go
#                 to RECORD_DIR/ep. A result that misses a mark is said to, and is no failure
#   --ep-only     the same, and before it of the conformance suite dispatch and combine alone, groups over
#                 all GPUs and over processes among them
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
ep=no
suite=conformance
cases=cuda::
peers=
record=record
while [ $# -gt 0 ]; do
    case $1 in
        --sanitizer) sanitizer=yes ;;
        --demo) demo=yes ;;
        --bench) bench=yes ;;
        --ep) ep=yes ;;
        --ep-only)
            ep=yes
            suite=conformance-ep
            cases=cuda::ep::
            ;;
        --peers)
            peers=${2:-}
            if [ ! -d "$peers" ]; then
                echo "--peers needs a folder of packages; see --help" >&2
                exit 2
            fi
            shift
            ;;
        -h | --help)
            sed -n '2,22s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
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

# GPUs of this machine that a group can be over, one at least.
if [ -n "${CUDA_VISIBLE_DEVICES:-}" ]; then
    gpus=$(tr ',' '\n' <<<"$CUDA_VISIBLE_DEVICES" | grep -c .)
else
    gpus=$(nvidia-smi --query-gpu=index --format=csv,noheader 2>/dev/null | wc -l)
fi
[ "$gpus" -ge 1 ] || gpus=1
[ "$gpus" -le 8 ] || gpus=8
echo "GPUs:    $gpus"

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

step "$suite" "$here/conformance" "$cases" --test-threads=1

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

# bench_ep NAME FLAGS...: a step of `xtask bench ep`, whose record goes to RECORD_DIR/ep/NAME.
bench_ep() {
    local name=$1
    shift
    step "$name" "$here/xtask" bench ep "$@" --out "$record/ep/$name"
}

if [ "$ep" = yes ]; then
    # What reaches what. It also looks for tools that are not needed here, so its exit status says nothing.
    "$here/xtask" doctor 2>&1 | tee "$record/doctor.log"
    bench_ep ep-1-gpu --gpus 1 --ranks 8
    if [ "$gpus" -gt 1 ]; then
        # As many as divide the experts and the ranks: 2, 4 or 8.
        for all in 8 4 2; do
            [ "$all" -gt "$gpus" ] || break
        done
        # Every format and size once; other ways home, to launch, and to place ranks at what tells them apart.
        some=(--tokens 16 --tokens 128 --tokens 1024 --tokens 4096)
        bench_ep "ep-$all-gpus" --gpus "$all" --ranks "$all"
        bench_ep "ep-$all-gpus-home" --gpus "$all" --ranks "$all" "${some[@]}" --format mxfp8 --combine mxfp8,nvfp4
        bench_ep "ep-$all-processes" --gpus "$all" --processes "${some[@]}"
        if [ "$all" -lt 8 ]; then
            bench_ep "ep-$all-gpus-8-ranks" --gpus "$all" --ranks 8 "${some[@]}"
        fi
    fi
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
    echo "  \"gpus\": $gpus,"
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
