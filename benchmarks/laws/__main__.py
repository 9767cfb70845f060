"""Takes the laws of `allocsim/laws/data` from real PyTorch over the phantom GPU.

    python -m benchmarks.laws --python PATH [--only NAME ...] [--list]

PATH is a Python with a CUDA build of PyTorch, transformers and peft.  Each program is recorded at
thirteen sizes in each regime, a fifth of a second each; a line says how many regimes have a law,
and why the others have none.  `make laws` runs it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence

from allocsim.laws import write_laws
from allocsim.phantom import find_torch
from benchmarks.laws.samples import Variant
from benchmarks.laws.served import serving_laws_of
from benchmarks.laws.taken import laws_of

_WITH_ADAPTERS = {"optimizer": "adamw", "lora": 8}
_FULL = (
    *(("bf16", "adamw"), ("bf16", "adamw-fused"), ("bf16", "sgd"), ("bf16", "momentum")),
    *(("autocast-bf16", "adamw"), ("autocast-bf16", "adamw-fused")),
    *(("fp32", "adamw"), ("fp32", "adamw-fused"), ("fp32", "sgd"), ("fp32", "momentum")),
)
_SERVED = (("bf16", "sdpa"), ("fp32", "sdpa"), ("bf16", "eager"))
FAMILIES = (("llama", True), ("llama", False), ("qwen2", True), ("qwen2", False), ("gpt2", True))


def variants() -> Iterator[Variant]:
    """Every program that is recorded."""
    for family, is_tied in FAMILIES:
        for dtype, optimizer in _FULL:
            for checkpointing in (False, True):
                more = {"checkpointing": True} if checkpointing else {}
                yield Variant(family, is_tied, {"dtype": dtype, "optimizer": optimizer, **more})
        for checkpointing in (False, True):
            more = {"checkpointing": True} if checkpointing else {}
            yield Variant(family, is_tied, {"dtype": "bf16", **_WITH_ADAPTERS, **more})
        for dtype, attention in _SERVED:
            options = {"is_training": False, "dtype": dtype, "attention": attention}
            yield Variant(family, is_tied, options)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--python", help="the Python that has PyTorch")
    parser.add_argument("--only", nargs="+", default=(), help="names of programs")
    parser.add_argument("--list", action="store_true", help="print the names, and stop")
    options = parser.parse_args(argv)
    found = {variant.name: variant for variant in variants()}
    if options.list:
        print("\n".join(found))
        return
    if options.python is None:
        parser.error("which Python has PyTorch? --python PATH")
    release = find_torch(options.python).version
    for name in options.only or found:
        began = time.perf_counter()
        take = serving_laws_of if found[name].serves else laws_of
        laws, refused = take(found[name], options.python, release)
        size = write_laws(laws).stat().st_size if laws.by_regime else 0
        seconds = time.perf_counter() - began
        print(f"{name}: {len(laws.by_regime)} regimes, {size:,} bytes, {seconds:.0f} s", flush=True)
        for regime, why in refused.items():
            print(f"    none for {regime}: {why}", flush=True)


if __name__ == "__main__":
    main()
