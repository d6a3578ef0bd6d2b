#!/usr/bin/env python3
"""Times public quantizers beside Tokenyard's, on the same GPU, in one run, on the same bytes.

  peers.py --xtask XTASK --wheels WHEELS --out OUT [--shape NAME]... [--rounds N]

XTASK is the program of a GPU bundle. It quantizes and times first, and leaves the bytes of each case.
Each peer then gets the same input, is compared with Tokenyard's output byte by byte, and is timed in the
same way: CUDA graphs that rotate over buffers past the L2 cache. XTASK runs once more at the end, to show
how far the GPU drifted meanwhile. OUT gets peers.md and peers.json.

Needs PyTorch with CUDA, Triton, and in WHEELS the packages of PACKAGES below, as `pip download --no-deps`
leaves them. Nothing is installed: they are unpacked to a temporary folder. The exit status is 0 only if
every peer ran.
"""

import argparse
import datetime
import importlib.util
import json
import math
import pathlib
import statistics
import subprocess
import sys
import tempfile
import traceback
import zipfile

PACKAGES = [
    "tokenspeed-triton-kernels==1.0.0.post20260510",
    "torchao==0.18.0",
    "megatron-core==0.19.2",
    "humming-kernels==0.1.20",
    "quack-kernels==0.6.5",
]

DEFAULT_SHAPES = ["zipf-32768x7168-e64", "uniform-65536x4096-e256", "uniform-8192x2880-e128"]
BLOCK = {"nvfp4": 16, "mxfp4": 32, "mxfp8": 32}
L2_MULTIPLE = 4
REPLAY_US = 2000.0


def percentile(values, share):
    """The value that a share lies below, interpolated.

    >>> percentile([4.0, 1.0, 3.0, 2.0, 5.0], 0.1)
    1.4
    """
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = ordered[math.floor(place)]
    return low + (ordered[math.ceil(place)] - low) * (place - math.floor(place))


def unpack(archive, folder):
    """Unpacks an archive with the permissions of its files: some packages bring programs that they start."""
    for member in archive.infolist():
        path = pathlib.Path(archive.extract(member, folder))
        mode = member.external_attr >> 16 & 0o777
        if mode and path.is_file():
            path.chmod(mode)


def table(results):
    """The results as Markdown.

    >>> print(table([{"shape": "a", "format": "mxfp8", "name": "x", "us": 10.0, "p10": 9.0, "p90": 11.0,
    ...     "times_ours": 2.0, "data_equal": 1.0, "scales_equal": None, "less": "no groups"}]).splitlines()[2])
    | a | MXFP8 | x | 10.00 | 9.00 to 11.00 | 2.00 x | 100 % | - | no groups |
    """
    share = lambda value: "-" if value is None else f"{100 * value:.6g} %"
    lines = [
        "| shape | format | quantizer | µs | p10 to p90 | of our time | data bytes equal | scale bytes equal | does less |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for row in results:
        if "error" in row:
            numbers = ["failed", "-", "-", "-", "-", row["error"].splitlines()[0].replace("|", "/")]
        else:
            numbers = [
                f"{row['us']:.2f}",
                f"{row['p10']:.2f} to {row['p90']:.2f}",
                f"{row['times_ours']:.2f} x",
                share(row["data_equal"]),
                share(row["scales_equal"]),
                row["less"],
            ]
        cells = [row["shape"], row["format"].upper(), row["name"], *numbers]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


class Case:
    """One shape in one format: the input, the grouping, and Tokenyard's output."""

    def __init__(self, folder, torch):
        description = json.loads((folder / "case.json").read_text())
        self.id, self.shape, self.format = (description[key] for key in ("id", "shape", "format"))
        self.rows, self.columns = description["rows"], description["columns"]
        self.bytes = description["bytes"]
        self.occupied_tiles = description["occupied_tiles"]
        self.row_offsets = description["row_offsets"]
        read = lambda name: torch.frombuffer(bytearray((folder / name).read_bytes()), dtype=torch.uint8).cuda()
        self.input = read("input.bin").view(torch.bfloat16).view(self.rows, self.columns)
        self.data = read("data.bin")
        self.blocks = self.columns // BLOCK[self.format]
        self.column_tiles = -(-self.blocks // 4)
        # Tiles after the occupied ones are left alone.
        self.scales = read("scales.bin")[: self.occupied_tiles * self.column_tiles * 512]
        self.ends = torch.tensor(self.row_offsets[1:], dtype=torch.int32, device="cuda")

    def tiled(self, torch, grouped):
        """Index of every row's scales, [rows, blocks], in scale tiles; in one group or in the experts'."""
        offsets = self.row_offsets if grouped else [0, self.rows]
        places, tile = [], 0
        for start, end in zip(offsets, offsets[1:]):
            local = torch.arange(end - start, device="cuda", dtype=torch.int64)
            tiles, row = tile + local // 128, local % 128
            places.append(tiles * self.column_tiles * 512 + row % 32 * 16 + row // 32 * 4)
            tile += -(-(end - start) // 128)
        block = torch.arange(self.blocks, device="cuda", dtype=torch.int64)
        return torch.cat(places)[:, None] + (block // 4 * 512 + block % 4)[None, :]


class Peer:
    """A quantizer: `quantize(rows, case)` gives data and scales."""

    def __init__(self, name, formats, layout, less, make):
        self.name, self.formats, self.layout, self.less, self.make = name, formats, layout, less, make


def module_at(path, name):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def peers(packages, torch):
    """Every peer. What it needs is imported when it is made, so that one that fails leaves the others."""

    def rearrange():
        from torchao.prototype.moe_training.kernels.mxfp8 import triton_mx_block_rearrange_2d_M_groups

        return lambda scales, case: triton_mx_block_rearrange_2d_M_groups(
            scales.view(case.rows, case.blocks), case.ends
        )

    def triton_kernels(format):
        import triton.language.target_info as target_info

        # Triton 3.6 is older than the package expects; this question is about other GPUs.
        if not hasattr(target_info, "is_hip_gfx1250"):
            target_info.is_hip_gfx1250 = target_info.is_hip_cdna4
        from triton_kernels.numerics_details.mxfp import downcast_to_mxfp

        return {
            "mxfp4": lambda rows: downcast_to_mxfp(rows, torch.uint8, -1),
            "mxfp8": lambda rows: downcast_to_mxfp(rows, torch.float8_e4m3fn, -1),
            "nvfp4": lambda rows: downcast_to_mxfp(
                rows, torch.uint8, -1, scale_dtype=torch.float8_e4m3fn, microblock_size=16
            ),
        }[format]

    def triton_kernels_grouped(format):
        quantize, group = triton_kernels(format), rearrange()

        def run(rows, case):
            data, scales = quantize(rows)
            return data, group(scales.view(torch.uint8), case)

        return run

    def torchao(format):
        from torchao.prototype.mx_formats.config import ScaleCalculationMode
        from torchao.prototype.mx_formats.mx_tensor import to_mx

        mode = ScaleCalculationMode.RCEIL
        quantize = torch.compile(lambda rows: to_mx(rows, torch.float8_e4m3fn, 32, mode), dynamic=False)
        group = rearrange()

        def run(rows, case):
            scales, data = quantize(rows)
            return data, group(scales.view(torch.uint8), case)

        return run

    def megatron(format):
        path = packages / "megatron/core/inference/quantization/mxfp8_quantize.py"
        quantize = module_at(path, "peer_megatron").mxfp8_quantize
        return lambda rows, case: quantize(rows)

    def humming(format):
        from humming.ops import process_input

        return lambda rows, case: process_input(
            rows,
            quant_mode="dynamic_group",
            quant_dtype="float8e4m3",
            quant_group_size=32,
            group_scale_dtype="float8e8m0",
        )[:2]

    def quack(format):
        quantize = module_at(packages / "quack/blockscaled/quantize.py", "peer_quack").to_mx_compiled
        return lambda rows, case: quantize(rows, 32, "rceil")[:2]

    rearranged = "nothing: two launches and a fill"
    ungrouped = "no grouping: one scales tensor for all rows"
    linear = "no grouping, scales in row-major order"
    return [
        Peer(
            "triton_kernels downcast_to_mxfp, then torchao rearrange_2d_M_groups",
            ["nvfp4", "mxfp4", "mxfp8"],
            "grouped",
            rearranged,
            triton_kernels_grouped,
        ),
        Peer(
            "triton_kernels downcast_to_mxfp",
            ["nvfp4", "mxfp4", "mxfp8"],
            "linear",
            linear,
            lambda format: (lambda quantize: lambda rows, case: quantize(rows))(triton_kernels(format)),
        ),
        Peer("torchao to_mx compiled, then rearrange_2d_M_groups", ["mxfp8"], "grouped", rearranged, torchao),
        Peer("Megatron-core mxfp8_quantize", ["mxfp8"], "tiled", ungrouped, megatron),
        Peer("humming process_input", ["mxfp8"], "linear", linear, humming),
        Peer("quack to_mx_compiled", ["mxfp8"], "linear", linear, quack),
    ]


def equal_share(torch, found, expected):
    return (found == expected).double().mean().item()


def compare(torch, case, layout, data, scales):
    """Which share of the peer's bytes are Tokenyard's: data, scales."""
    as_bytes = lambda tensor: tensor.contiguous().view(torch.uint8).flatten()
    data, scales = as_bytes(data), as_bytes(scales)
    if data.numel() != case.data.numel():
        raise ValueError(f"{data.numel()} bytes of data, expected {case.data.numel()}")
    data_equal = equal_share(torch, data, case.data)
    if layout == "grouped":
        return data_equal, equal_share(torch, scales[: case.scales.numel()], case.scales)
    ours = case.scales[case.tiled(torch, grouped=True)]
    if layout == "tiled":
        theirs = scales[case.tiled(torch, grouped=False)]
    else:
        # Some pad their rows.
        theirs = scales.view(case.rows, -1)[:, : case.blocks]
    return data_equal, equal_share(torch, theirs, ours)


def time_graph(torch, launch, sets, rounds):
    """Microseconds a launch, one number a round. `launch(set)` returns what must stay alive."""

    def capture(launches):
        graph, outputs = torch.cuda.CUDAGraph(), [None] * sets
        with torch.cuda.graph(graph):
            for index in range(launches):
                outputs[index % sets] = launch(index % sets)
        return graph, outputs

    def replay(graph):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        # The first replay keeps the device busy while the timed one is queued.
        graph.replay()
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e3

    graph, outputs = capture(sets)
    replay(graph)
    rotations = max(1, math.ceil(REPLAY_US / replay(graph)))
    if rotations > 1:
        del graph, outputs
        graph, outputs = capture(sets * rotations)
        replay(graph)
    times = [replay(graph) / (sets * rotations) for _ in range(rounds)]
    del graph, outputs
    return times


def measure(torch, case, peer, inputs, rounds):
    quantize = peer.make(case.format)
    data, scales = quantize(inputs[0], case)
    torch.cuda.synchronize()
    data_equal, scales_equal = compare(torch, case, peer.layout, data, scales)
    # Compilation and lazy allocations must be over before anything is captured.
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            quantize(inputs[0], case)
    torch.cuda.synchronize()
    times = time_graph(torch, lambda index: quantize(inputs[index], case), len(inputs), rounds)
    return {
        "us": statistics.median(times),
        "p10": percentile(times, 0.1),
        "p90": percentile(times, 0.9),
        "data_equal": data_equal,
        "scales_equal": scales_equal,
        "less": peer.less,
    }


def run_ours(xtask, shapes, rounds, out, dump=None):
    command = [str(xtask), "bench", "quantize", "--suite", "marks", "--input", "bf16", "--out", str(out)]
    for shape in shapes:
        command += ["--shape", shape]
    command += ["--rounds", str(rounds)]
    if dump:
        command += ["--dump", str(dump)]
    subprocess.run(command, check=True)
    record = json.loads((out / "quantize.json").read_text())
    return record, {case["id"]: case["speed"] for case in record["cases"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    # A name without a folder would be looked for on the PATH.
    parser.add_argument("--xtask", type=lambda path: pathlib.Path(path).resolve(), required=True)
    parser.add_argument("--wheels", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--shape", action="append", help="default: " + ", ".join(DEFAULT_SHAPES))
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    import torch
    import triton

    shapes = options.shape or DEFAULT_SHAPES
    options.out.mkdir(parents=True, exist_ok=True)
    results, failed = [], False
    with tempfile.TemporaryDirectory() as scratch:
        packages, dump = pathlib.Path(scratch) / "packages", pathlib.Path(scratch) / "dump"
        wheels = sorted(options.wheels.glob("*.whl"))
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                unpack(archive, packages)
        sys.path.insert(0, str(packages))
        record, ours = run_ours(options.xtask, shapes, options.rounds, options.out / "before", dump)

        for folder in sorted(dump.iterdir()):
            case = Case(folder, torch)
            l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size
            sets = max(2, math.ceil(L2_MULTIPLE * l2_bytes / (2 * case.rows * case.columns)))
            inputs = [case.input] + [case.input.clone() for _ in range(sets - 1)]
            row = lambda name: {"shape": case.shape, "format": case.format, "name": name}
            kernel = ours[case.id]["kernel"]
            results.append(
                row("**Tokenyard**")
                | {"us": kernel["median"], "p10": kernel["p10"], "p90": kernel["p90"], "times_ours": 1.0}
                | {"data_equal": 1.0, "scales_equal": 1.0, "less": ""}
            )
            for peer in peers(packages, torch):
                if case.format not in peer.formats:
                    continue
                try:
                    result = row(peer.name) | measure(torch, case, peer, inputs, options.rounds)
                    result["times_ours"] = result["us"] / kernel["median"]
                except Exception as error:  # whatever a peer raises is its result
                    traceback.print_exc()
                    result = row(peer.name) | {"error": f"{type(error).__name__}: {error}"}
                    failed = True
                results.append(result)
            del case, inputs
            torch.cuda.empty_cache()

        _, again = run_ours(options.xtask, shapes, options.rounds, options.out / "after")

    drift = {id: again[id]["kernel"]["median"] / ours[id]["kernel"]["median"] for id in ours}
    text = table(results)
    widest = max(drift.values(), key=lambda value: abs(value - 1.0))
    text += f"\nTokenyard's own times at the end were at most {100 * abs(widest - 1.0):.1f} % off those at the beginning.\n"
    document = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "gpu": record["gpu"],
        "driver": record["driver"],
        "commit": record["commit"],
        "torch": torch.__version__,
        "triton": triton.__version__,
        "packages": [wheel.name for wheel in wheels],
        "drift": drift,
        "results": results,
    }
    (options.out / "peers.md").write_text(text)
    (options.out / "peers.json").write_text(json.dumps(document, indent=2) + "\n")
    print(text)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
