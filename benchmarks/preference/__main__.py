"""Compare the memory of DPO by program and by formula with TRL over a phantom GPU.

    python -m benchmarks.preference [--python PYTHON [TEXT ...]]

`ran.json` has the peaks of earlier runs. With PYTHON, an interpreter with torch, transformers, peft
and TRL, the trainings with a TEXT in their name, or all, are run (a minute or two each) and stored.
Writes the table of docs/evidence/fit-measured.md.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from allocsim.fitting import Configured, Task, estimate, model_of, run_program
from allocsim.phantom import find_gpu
from allocsim.units import GIB, TIB
from tests.reference import between_marks

PAGE = Path(__file__).parents[2] / "docs" / "evidence" / "fit-measured.md"
COMMAND = "python -m benchmarks.preference"
INSIDE = Path(__file__).with_name("inside.py")
RAN = Path(__file__).with_name("ran.json")
"""Allocated and reserved bytes at the peaks of each training, by TRL and by our program."""
GPU = replace(find_gpu("A100 80GB"), memory=TIB)
_FULL: dict[str, Any] = {"dtype": "autocast-bf16", "reference": "copy"}
_LORA: dict[str, Any] = {"dtype": "bf16", "lora": 16, "checkpointing": True} | {
    "reference": "adapter"
}
_KINDS = (_FULL, _FULL | {"checkpointing": True}, _LORA, _LORA | {"whole_softmax": True})
HEAD = (
    *("training", "allocated GiB by TRL", "by program", "error", "by formula", "error"),
    *("reserved GiB by TRL", "by program", "by formula"),
)


def tasks() -> dict[str, Task]:
    """Return the trainings by their text."""
    models = map(model_of, ("gpt2", "Qwen3-0.6B", "Llama-3.2-1B"))
    found = (
        Task(model=model, batch=2, seq=seq, **kind)
        for model, seq, kind in product(models, (512, 1024), _KINDS)
    )
    return {
        each.text.partition(" of ")[2] + ", whole softmax" * each.whole_softmax: each
        for each in found
    }


def by_trl(task: Task, python: str) -> list[int]:
    """Return the bytes that TRL allocates and reserves at the peaks."""
    assert isinstance(task.model, Configured)
    names = ("batch", "seq", "dtype", "lora", "checkpointing")
    request = {"config": dict(task.model.config)} | {name: getattr(task, name) for name in names}
    ran = run_program([python, str(INSIDE), json.dumps(request)], GPU)
    return [ran.peak_allocated_bytes, ran.peak_reserved_bytes]


def line(name: str, task: Task, ran: Mapping[str, Sequence[int]]) -> list[str]:
    """Return a row of the table; errors are relative to TRL, or else to the program."""
    found = estimate(task, GPU)
    parts = [part for part in found.parts if part.name != "CUDA context"]
    ends = [sum(part.low for part in parts), sum(part.high for part in parts)]
    (program, program_reserved), formula = ran["program"], found.peak_allocated_bytes
    theirs, reserved = ran.get("trl") or (program, 0)
    return [
        *(name, _gib(theirs) if reserved else "-"),
        *(_gib(program), _error(program, theirs) if reserved else "-"),
        *(_gib(formula), _error(formula, theirs)),
        *(_gib(reserved) if reserved else "-", _gib(program_reserved)),
        " to ".join(map(_gib, ends)),
    ]


def _gib(size: int) -> str:
    return f"{size / GIB:.3f}"


def _error(found: int, measured: int) -> str:
    return f"{100 * (found / measured - 1):+.2f} %" if found != measured else "0"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--python", help="interpreter with PyTorch, transformers, peft and TRL")
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="parts of names to run")
    given = parser.parse_args()
    python, ran = given.python, json.loads(RAN.read_text())
    for name, task in tasks().items() if python else ():
        if given.texts and not any(text in name for text in given.texts):
            continue
        program = run_program(task, GPU, python=python)
        ran[name] = {"program": [program.peak_allocated_bytes, program.peak_reserved_bytes]}
        if not task.whole_softmax:
            ran[name]["trl"] = by_trl(task, python)
        print(name, ran[name], flush=True)
        stored = (f" {json.dumps(each)}: {json.dumps(peaks)}" for each, peaks in ran.items())
        RAN.write_text("{\n" + ",\n".join(stored) + "\n}\n")
    rows = [line(name, task, ran[name]) for name, task in tasks().items() if name in ran]
    lines = [HEAD, ["---"] * len(HEAD), *rows]
    made = "\n".join(f"| {' | '.join(row)} |" for row in lines)
    PAGE.write_text(between_marks(PAGE.read_text(), "preference", COMMAND, made))


if __name__ == "__main__":
    main()
