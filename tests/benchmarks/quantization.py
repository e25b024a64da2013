"""How fast are int8 blocks and NF4? Ours, bitsandbytes' CPU code and torchao, beside a plain copy of the input.

Each size and library runs in a fresh process, so that its peak memory is its own. GB/s count the input's bytes; "of a
copy" is that rate over the rate of copying the input; "extra" is the peak memory above the input, the result
included, over the input. torchao is left out where it isn't installed.

    python tests/benchmarks/quantization.py                    # 1 to 64 million values
    python tests/benchmarks/quantization.py --millions 1 4     # quicker
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import time

BLOCK = 64
SCHEMES = ("int8", "nf4")
LIBRARIES = ("onegpu", "bitsandbytes", "torchao")


def quantizer(library: str, scheme: str):
    """The function to time: tensor in, everything needed to get it back out."""
    if library == "onegpu":
        from onegpu.quantization import quantize_4bit, quantize_blockwise

        return (
            (lambda x: quantize_blockwise(x, BLOCK))
            if scheme == "int8"
            else lambda x: quantize_4bit(x, "nf4", BLOCK)
        )
    if library == "bitsandbytes":
        import bitsandbytes.functional as bnb

        linear = bnb.create_linear_map()
        if scheme == "int8":
            return lambda x: bnb.quantize_blockwise(x, code=linear, blocksize=BLOCK)
        return lambda x: bnb.quantize_4bit(x, blocksize=BLOCK, quant_type="nf4")
    if scheme == "nf4":
        from torchao.quantization.quantize_.workflows.nf4.nf4_tensor import to_nf4

        return lambda x: to_nf4(x, BLOCK, 256)
    return torchao_int8


def torchao_int8(x):
    import torch
    from torchao.quantization import quant_primitives as ao

    rows = x.view(-1, BLOCK)
    choose = getattr(ao, "choose_qparams_affine", None) or ao._choose_qparams_affine
    quantize = getattr(ao, "quantize_affine", None) or ao._quantize_affine
    mapping = ao.MappingType.SYMMETRIC_NO_CLIPPING_ERR
    scale, zero = choose(rows, mapping, (1, BLOCK), torch.int8, -127, 127, scale_dtype=torch.float32)
    return quantize(rows, (1, BLOCK), scale, zero, torch.int8, -127, 127), scale


def best_seconds(function, at_least: float = 1.0) -> float:
    """The fastest call of at least three, and of as many as fit in `at_least` seconds."""
    times: list[float] = []
    while len(times) < 3 or sum(times) < at_least:
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def copy_seconds(x) -> float:
    """The time to copy `x` into memory that is there already."""
    target = x.clone()
    return best_seconds(lambda: target.copy_(x))


def measure(library: str, scheme: str, millions: int) -> dict:
    """Time one library at one size in this process."""
    import torch

    torch.manual_seed(0)
    quantize = quantizer(library, scheme)
    quantize(torch.randn(BLOCK * 1024))  # imports and tables, before memory is looked at
    x = torch.randn(millions * 2**20)
    copied = copy_seconds(x)
    with open("/proc/self/clear_refs", "w") as file:  # reset the peak to what is held now (Linux)
        file.write("5")
    before = _high_water_bytes()
    result = quantize(x)
    extra = _high_water_bytes() - before
    del result
    seconds = best_seconds(lambda: quantize(x))
    return {"gb_s": x.nbytes / seconds / 1e9, "of_copy": copied / seconds, "extra": extra / x.nbytes}


def _high_water_bytes() -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))


def in_fresh_process(library: str, scheme: str, millions: int) -> dict:
    """Run `measure` in a process of its own."""
    command = [sys.executable, __file__, "--one", library, scheme, str(millions)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{library} {scheme} {millions}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--millions", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        library, scheme, millions = options.one
        print(json.dumps(measure(library, scheme, int(millions))))
        return
    libraries = [name for name in LIBRARIES if importlib.util.find_spec(name)]
    print(
        f"{'scheme':6} {'values':>7} {'library':13} {'GB/s':>7} {'of a copy':>10} {'extra':>6} {'ours is':>9}"
    )
    for scheme in SCHEMES:
        for millions in options.millions:
            ours = None
            for library in libraries:
                found = in_fresh_process(library, scheme, millions)
                ours = ours or found["gb_s"]
                times = f"{ours / found['gb_s']:.1f} x"
                print(
                    f"{scheme:6} {millions:>6}M {library:13} {found['gb_s']:7.3f} {found['of_copy']:10.3f} "
                    f"{found['extra']:6.2f} {times:>9}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
