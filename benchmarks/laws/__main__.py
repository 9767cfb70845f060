"""Derive the laws of `allocsim/fitting/laws/data` from real PyTorch over the phantom GPU.

    python -m benchmarks.laws --python PATH [--only NAME ...] [--ways PATTERN ...] [--more]
    python -m benchmarks.laws --python PATH --check SEED [--count N] [--mend] [--only NAME ...]
    python -m benchmarks.laws --list | --write

PATH is a Python with a CUDA build of PyTorch, transformers and peft. Each program is recorded at
thirteen sizes in each regime (the sizes at which PyTorch runs the same kernels), a fifth of a
second each. If the recordings of a regime contradict each other, it is recorded at eight more
sizes. A line reports the number of regimes with a law, and the reasons why others have none.
Training programs are recorded with AdamW; their laws are cut into those of the model and of the
optimizer, which `allocsim.fitting.laws.optimizers` has for any model. --more keeps the existing
laws of a part, and derives the missing ones; --ways records only the regimes of training whose
names contain a match of a pattern, such as "shared.whole". `make laws` runs this command.

--check compares composed laws of training with a further recording in each regime, or in N regimes,
at sizes drawn with another SEED than 0, and exits with 1 if a law is refuted. A name may be any
program that has laws, recorded or not. With --mend, refuted laws are derived again, or removed.

--write updates the list of parts in benchmarks/results/laws.md, and the list of programs and
regimes without laws in laws-missing.txt there.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

from allocsim.fitting.laws import (
    FAMILIES,
    FIRST,
    SERVE,
    ProgramName,
    find_laws,
    known_programs,
    made_by,
)
from benchmarks.laws.known import write
from benchmarks.laws.parameters import parameters_of
from benchmarks.laws.parts import FamilyFile, parts_of_training
from benchmarks.laws.recorded import releases_of
from benchmarks.laws.samples import VIT, Variant, regimes
from benchmarks.laws.served import serving_laws_of
from benchmarks.laws.taken import checked, laws_of

_STEPS = 4


class Recorded(NamedTuple):
    """Programs of a model family that are recorded, with and without checkpointing.

    tied: values of tie_word_embeddings.
    trained: precisions of training.
    attention: attention implementations of training.
    adapted: sets of modules with LoRA adapters; an empty set is all linear modules.
    served: precisions and attention implementations of serving.
    """

    tied: tuple[bool, ...] = (False,)
    trained: tuple[str, ...] = ("bf16",)
    attention: tuple[str, ...] = ("sdpa",)
    adapted: tuple[tuple[str, ...], ...] = ()
    served: tuple[tuple[str, str], ...] = (("bf16", "sdpa"),)


_MIXED = ("bf16", "autocast-bf16")
_TRAINED = (*_MIXED, "fp32")
_BOTH = ("sdpa", "eager")
_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
_LIKE_LLAMA = Recorded(
    tied=(True, False),
    trained=_TRAINED,
    attention=_BOTH,
    adapted=((), ("q_proj", "v_proj")),
    served=(("bf16", "sdpa"), ("fp32", "sdpa"), ("bf16", "eager"), ("fp16", "eager")),
)
_WINDOWED = Recorded(trained=_MIXED, adapted=((),))
_EXCEPTIONS = {
    "llama": _LIKE_LLAMA,
    "qwen2": _LIKE_LLAMA,
    "qwen3": Recorded(
        tied=(True, False),
        trained=_MIXED,
        adapted=((),),
        served=(("bf16", "sdpa"), ("fp32", "sdpa")),
    ),
    "gpt2": _LIKE_LLAMA._replace(tied=(True,), adapted=((), ("c_attn",))),
    "gemma2": _LIKE_LLAMA._replace(
        tied=(True,),
        attention=("eager",),
        served=(("bf16", "eager"), ("fp16", "eager"), ("fp32", "eager")),
    ),
    "mistral": _WINDOWED,
    "phi3": _WINDOWED,
    "mixtral": Recorded(trained=_MIXED, adapted=((), _ATTENTION)),
    "bert": Recorded(tied=(True,), trained=_TRAINED, served=()),
    "vit": Recorded(trained=_MIXED, served=()),
    VIT: Recorded(trained=_TRAINED, served=()),
}
"""Families whose programs are not those of `Recorded()`."""


def variants() -> Iterator[Variant]:
    """Yield every program that is recorded."""
    for family in FAMILIES:
        recorded = _EXCEPTIONS.get(family, Recorded())
        for is_tied, options in product(recorded.tied, _options(recorded)):
            for checkpointing in ({}, {"checkpointing": True}):
                if not (checkpointing and family == VIT):  # torchvision has no checkpointing
                    yield Variant(family, is_tied, {**options, **checkpointing})
        for is_tied, (dtype, attention) in product(recorded.tied, recorded.served):
            options = {"is_training": False, "dtype": dtype, "attention": attention}
            yield Variant(family, is_tied, options)


def _options(recorded: Recorded) -> Iterator[dict[str, Any]]:
    """Yield the options of a family's training programs, without checkpointing."""
    for dtype, attention in product(recorded.trained, recorded.attention):
        yield {"dtype": dtype, "optimizer": "adamw", "attention": attention}
    options = {"dtype": "bf16", "optimizer": "adamw", "attention": recorded.attention[0]}
    for targets in recorded.adapted:
        yield {**options, "lora": 8, "lora_targets": targets}


def variant_of(name: ProgramName) -> Variant:
    """Return the variant of a program that has laws."""
    family, _, tied = name.family.partition("_")
    options: dict[str, Any] = {"dtype": "bf16" if name.dtype == "16-bit" else name.dtype}
    options["checkpointing"] = "checkpointing" in name.options
    options["attention"] = "eager" if "eager" in name.options else "sdpa"
    for each in name.options:
        if each.startswith("lora"):
            options |= {"lora": 8, "lora_targets": tuple(each.split("-")[1:])}
    if name.work == SERVE:
        options["is_training"] = False
    else:
        options["optimizer"] = name.work
    return Variant(family, tied == "tied", options)


def _check(
    chosen: Sequence[Variant], python: str, seed: int, count: int | None, *, mends: bool
) -> int:
    """Compare the laws of programs with new recordings, and return the exit code.

    seed, count: as in `checked`.
    mends: True to derive refuted laws again, or remove them from the files.
    """
    wrong: dict[str, list[str]] = {}
    n = n_refuted = 0
    for check in checked([each for each in chosen if not each.serves], python, seed, count):
        n += 1
        verdict = "as recorded"
        if check.difference:
            n_refuted += 1
            verdict = f"{dict(check.sizes)} differs from {check.difference} on"
            wrong.setdefault(check.variant.name, []).append(check.regime)
        print(f"{check.variant.name} {check.regime}: {verdict}", flush=True)
    print(f"{n - n_refuted} of {n} recordings are as the laws say")
    for variant in chosen:
        if mends and variant.name in wrong:
            _record(variant, python, wrong[variant.name], seed)
    return int(n_refuted > 0)


def _record(variant: Variant, python: str, sought: Sequence[str], seed: int = 0) -> None:
    """Record a program and write its laws to the file of its family.

    sought: regimes of training whose laws are derived, or else removed.
    seed: seed with which the sizes are drawn.
    """
    began, name = time.perf_counter(), variant.program
    if variant.serves:
        stacks, laws, refused = serving_laws_of(variant, python)
    else:
        stacks, found, refused = laws_of(variant, python, sought, seed)
    releases = releases_of(python)
    file = FamilyFile.read(name.family) or FamilyFile(
        releases.torch, releases.transformers, FAMILIES[variant.family].period
    )
    if variant.serves:
        file.add(name.part, laws, stacks)
        n_found = len(laws)
    else:
        for regime in sought:
            file.remove(name.part, regime)
        for regime, whole in found.items():
            parts = parts_of_training(whole.law, stacks, whole.reset, _STEPS, regime)
            own = {each: law for each, law in parts.items() if each.endswith(f".{regime}")}
            file.add(name.part, own, stacks)
            if made_by(regime) not in file.parts.get(name.make, ()):
                made = {each: law for each, law in parts.items() if each not in own}
                file.add(name.make, made, stacks)
            if name.make not in file.parameters:
                (file.parameters[name.make],) = parameters_of([variant], python)
        n_found = len(found)
    size = file.write(name.family).stat().st_size
    seconds = time.perf_counter() - began
    print(f"{name.text}: {n_found} laws, {size:,} bytes in all, {seconds:.0f} s", flush=True)
    for regime, why in refused.items():
        print(f"    none for {regime}: {why}", flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--python", help="the Python that has PyTorch")
    parser.add_argument("--only", nargs="+", default=(), help="names of programs")
    parser.add_argument("--ways", nargs="+", default=("",), help="patterns of names of regimes")
    parser.add_argument("--more", action="store_true", help="keep the laws that there are")
    parser.add_argument("--check", type=int, metavar="SEED", help="hold the laws that there are")
    parser.add_argument("--count", type=int, help="regimes of each program to hold")
    parser.add_argument("--mend", action="store_true", help="take those that are refuted anew")
    parser.add_argument("--list", action="store_true", help="print the names, and stop")
    parser.add_argument("--write", action="store_true", help="write what has laws, and stop")
    options = parser.parse_args(argv)
    recorded = {variant.name: variant for variant in variants()}
    composed = {name.text: variant_of(name) for name in known_programs()}
    found = {**composed, **recorded}
    if options.list:
        print("\n".join(recorded))
        return
    if options.write:
        write(list(recorded.values()))
        return
    if options.python is None:
        parser.error("which Python has PyTorch? --python PATH")
    chosen = [found[name] for name in options.only or recorded]
    if options.check is not None:
        more = options.check, options.count
        raise SystemExit(_check(chosen, options.python, *more, mends=options.mend))
    for variant in chosen:
        laws = find_laws(variant.program) if options.more else None
        known = () if laws is None else laws
        if not variant.serves:
            sought = [
                each
                for each in regimes(variant)
                if f"{FIRST}.{each}" not in known
                and any(re.search(way, each) for way in options.ways)
            ]
            _record(variant, options.python, sought)
        elif not known:
            _record(variant, options.python, ())


if __name__ == "__main__":
    main()
