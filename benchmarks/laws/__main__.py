"""Derive the laws of `allocsim/fitting/laws/data` from real PyTorch over the phantom GPU.

    python -m benchmarks.laws --python PATH [--only NAME ...] [--more]
    python -m benchmarks.laws --python PATH --check SEED [--mend] [--only NAME ...]
    python -m benchmarks.laws --list | --write

PATH is a Python with a CUDA build of PyTorch, transformers and peft. Each program is recorded at
thirteen sizes in each regime (the sizes at which PyTorch runs the same kernels), a fifth of a
second each. If the recordings of a regime contradict each other, it is recorded at eight more
sizes. A line reports the number of regimes with a law, and the reasons why others have none. The
laws are written for the release of transformers that PATH has
(`allocsim.fitting.laws.TRANSFORMERS`). --more keeps the existing laws of a file, and derives the
missing ones. `make laws` runs this command.

--check compares each law of training with one more recording, at sizes drawn with another SEED than
0, and exits with 1 if a law is refuted. With --mend, refuted laws are derived again with the
recording that refuted them, or removed.

--write updates the list of programs with laws in benchmarks/results/laws.md, and the list of
programs without laws, each with the nearest program that has laws, in laws-missing.txt there.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from typing import Any

from allocsim.fitting.laws import TRANSFORMERS, find_laws, write_laws
from benchmarks.laws.known import write
from benchmarks.laws.recorded import releases_of
from benchmarks.laws.samples import VIT, Variant
from benchmarks.laws.served import serving_laws_of
from benchmarks.laws.taken import laws_of, mended, refuted

_ADAPTED = {"llama": ("q_proj", "v_proj"), "qwen2": ("q_proj", "v_proj"), "gpt2": ("c_attn",)}
"""Modules that peft adapts by default."""
_FULL = (
    *(("bf16", "adamw"), ("bf16", "adamw-fused"), ("bf16", "sgd"), ("bf16", "momentum")),
    *(("autocast-bf16", "adamw"), ("autocast-bf16", "adamw-fused")),
    *(("fp32", "adamw"), ("fp32", "adamw-fused"), ("fp32", "sgd"), ("fp32", "momentum")),
    *((dtype, each) for dtype in ("bf16", "fp32") for each in ("adafactor", "adamw-foreach-off")),
)
_SERVED = (("bf16", "sdpa"), ("fp32", "sdpa"), ("bf16", "eager"))
_EAGER = ("bf16", "autocast-bf16", "fp32")
FAMILIES = (("llama", True), ("llama", False), ("qwen2", True), ("qwen2", False), ("gpt2", True))
MORE_FAMILIES = (
    *(("mistral", False), ("phi3", False), ("mixtral", False), ("bert", True)),
    *((VIT, False), ("vit", False)),
)
_EAGER_FULL = (
    *(("fp32", "adamw"), ("bf16", "adamw-fused"), ("bf16", "sgd"), ("bf16", "momentum")),
    *(("fp32", "sgd"), ("fp32", "momentum")),
)
_USUAL = (("bf16", "adamw"), ("autocast-bf16", "adamw"), ("autocast-bf16", "adamw-fused"))


def variants() -> Iterator[Variant]:
    """Yield every program that is recorded."""
    for family, is_tied in FAMILIES:
        for options in _options(family):
            for more in ({}, {"checkpointing": True}):
                yield Variant(family, is_tied, {**options, **more})
        for dtype, attention in _SERVED:
            options = {"is_training": False, "dtype": dtype, "attention": attention}
            yield Variant(family, is_tied, options)
    for family, is_tied in MORE_FAMILIES:
        for dtype, optimizer in _USUAL:
            for more in ({}, {"checkpointing": True}):
                if not (more and family == VIT):  # torchvision has no checkpointing
                    options = {"dtype": dtype, "optimizer": optimizer, **more}
                    yield Variant(family, is_tied, options)
    for options in _options_of_gemma2():
        for more in ({}, {"checkpointing": True}):
            yield Variant("gemma2", True, {**options, "attention": "eager", **more})
    for dtype in ("bf16", "fp16", "fp32"):
        options = {"is_training": False, "dtype": dtype, "attention": "eager"}
        yield Variant("gemma2", True, options)
    yield Variant("mixtral", False, {"is_training": False, "dtype": "bf16", "attention": "sdpa"})


def _options(family: str) -> Iterator[dict[str, Any]]:
    """Yield the options of a family, without checkpointing."""
    for dtype, optimizer in _FULL:
        yield {"dtype": dtype, "optimizer": optimizer}
    for dtype in _EAGER:
        yield {"dtype": dtype, "optimizer": "adamw", "attention": "eager"}
    for targets in ((), _ADAPTED[family]):
        yield {"dtype": "bf16", "optimizer": "adamw", "lora": 8, "lora_targets": targets}


def _options_of_gemma2() -> Iterator[dict[str, Any]]:
    """Yield the options of Gemma 2, which supports only eager attention."""
    for dtype, optimizer in (*_USUAL, *_EAGER_FULL):
        yield {"dtype": dtype, "optimizer": optimizer}
    for targets in ((), _ADAPTED["llama"]):
        yield {"dtype": "bf16", "optimizer": "adamw", "lora": 8, "lora_targets": targets}


def _check(chosen: Sequence[Variant], python: str, seed: int, *, mends: bool) -> int:
    """Compare the laws of programs with new recordings, and return the exit code.

    seed: seed with which the sizes are drawn.
    mends: True to derive refuted laws again, or remove them from the files.
    """
    n_held = n_refuted = 0
    transformers = releases_of(python).transformers
    for variant in chosen:
        laws = None if variant.serves else find_laws(variant.name, transformers)
        if laws is None:
            continue
        held, why = refuted(laws, variant, python, seed)
        n_held, n_refuted = n_held + held, n_refuted + len(why)
        print(f"{variant.name}: {held - len(why)} of {held} hold", flush=True)
        for regime, sizes, row in why:
            print(f"    {regime}: {sizes} differs from {row} on", flush=True)
        if why and mends:
            wrong = [regime for regime, _, _ in why]
            better = mended(laws, variant, python, wrong, seed)
            write_laws(better)
            n_mended = len(better.by_regime) - len(laws.by_regime) + len(wrong)
            print(f"    {n_mended} of them are mended", flush=True)
    print(f"{n_held - n_refuted} of {n_held} laws hold at new sizes")
    return int(n_refuted > 0)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--python", help="the Python that has PyTorch")
    parser.add_argument("--only", nargs="+", default=(), help="names of programs")
    parser.add_argument("--more", action="store_true", help="keep the laws that there are")
    parser.add_argument("--check", type=int, metavar="SEED", help="hold the laws that there are")
    parser.add_argument("--mend", action="store_true", help="take those that are refuted anew")
    parser.add_argument("--list", action="store_true", help="print the names, and stop")
    parser.add_argument("--write", action="store_true", help="write what has laws, and stop")
    options = parser.parse_args(argv)
    found = {variant.name: variant for variant in variants()}
    if options.list:
        print("\n".join(found))
        return
    if options.write:
        write(list(found.values()))
        return
    if options.python is None:
        parser.error("which Python has PyTorch? --python PATH")
    if options.check is not None:
        chosen = [found[name] for name in options.only or found]
        raise SystemExit(_check(chosen, options.python, options.check, mends=options.mend))
    releases = releases_of(options.python)
    for name in options.only or found:
        began = time.perf_counter()
        if found[name].serves:
            laws, refused = serving_laws_of(found[name], options.python, releases)
        else:
            known = find_laws(name, releases.transformers) if options.more else None
            laws, refused = laws_of(found[name], options.python, releases, known)
        is_told = laws.by_regime or releases.transformers != TRANSFORMERS[0]
        size = write_laws(laws).stat().st_size if is_told else 0
        seconds = time.perf_counter() - began
        print(f"{name}: {len(laws.by_regime)} regimes, {size:,} bytes, {seconds:.0f} s", flush=True)
        for regime, why in refused.items():
            print(f"    none for {regime}: {why}", flush=True)


if __name__ == "__main__":
    main()
