"""Compare the memory of DPO by program and by formula with TRL over a phantom GPU.

    python -m benchmarks.preference [--python PYTHON [TEXT ...]]

`ran.json` has the peaks of earlier runs. With PYTHON, an interpreter with torch, transformers, peft
and TRL, the trainings with a TEXT in their name, or all, are run (a minute or two each) and stored.
Writes the table of docs/evidence/fit-measured.md.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from allocsim.fitting import Configured, Task, estimate, model_of, program_of, run_program
from allocsim.phantom import find_gpu
from allocsim.units import TIB
from benchmarks.recent import gib, percent_off
from tests.reference import between_marks

PAGE = Path(__file__).parents[2] / "docs" / "evidence" / "fit-measured.md"
COMMAND = "python -m benchmarks.preference"
INSIDE = Path(__file__).with_name("inside.py")
RAN = Path(__file__).with_name("ran.json")
"""Allocated and reserved bytes at the peaks of each training, by TRL and by our program.

The digest is that of the program that ran.
"""
GPU = replace(find_gpu("A100 80GB"), memory=TIB)
_FULL: dict[str, Any] = {"dtype": "autocast-bf16", "reference": "copy"}
_LORA: dict[str, Any] = {"dtype": "bf16", "lora": 16, "checkpointing": True} | {
    "reference": "adapter"
}
_KINDS = (_FULL, _FULL | {"checkpointing": True}, _LORA, _LORA | {"whole_softmax": True})
_TRAININGS = (
    *(("gpt2", 512, _KINDS), ("gpt2", 1024, _KINDS), ("Qwen3-0.6B", 512, _KINDS)),
    *(("Qwen3-0.6B", 1024, _KINDS[1:2]), ("Llama-3.2-1B", 512, _KINDS[1:])),
)
"""Model, tokens of a sequence, and kinds of the trainings that are compared."""
HEAD = (
    *("training", "allocated GiB by TRL", "by program", "error", "by formula", "error"),
    *("reserved GiB by TRL", "by program", "by formula"),
)


def tasks() -> dict[str, Task]:
    """Return the trainings by their text."""
    found = (
        Task(model=model_of(name), batch=2, seq=seq, **kind)
        for name, seq, kinds in _TRAININGS
        for kind in kinds
    )
    return {
        each.text.partition(" of ")[2] + ", whole softmax" * each.whole_softmax: each
        for each in found
    }


def digest_of(task: Task) -> str:
    """Return a digest of the text of the task's program."""
    return hashlib.sha256(program_of(task).encode()).hexdigest()[:16]


def by_trl(task: Task, python: str) -> list[int]:
    """Return the bytes that TRL allocates and reserves at the peaks."""
    assert isinstance(task.model, Configured)
    names = ("batch", "seq", "dtype", "lora", "checkpointing")
    request = {"config": dict(task.model.config)} | {name: getattr(task, name) for name in names}
    ran = run_program([python, str(INSIDE), json.dumps(request)], GPU)
    return [ran.peak_allocated_bytes, ran.peak_reserved_bytes]


def line(name: str, task: Task, ran: Mapping[str, Any]) -> list[str]:
    """Return a row of the table; errors are relative to TRL, or else to the program."""
    found = estimate(task, GPU)
    parts = [part for part in found.parts if part.name != "CUDA context"]
    ends = [sum(part.low for part in parts), sum(part.high for part in parts)]
    (program, program_reserved), formula = ran["program"], found.peak_allocated_bytes
    theirs, reserved = ran.get("trl") or (program, 0)
    return [
        *(name, gib(theirs) if reserved else "-"),
        *(gib(program), percent_off(program, theirs) if reserved else "-"),
        *(gib(formula), percent_off(formula, theirs)),
        *(gib(reserved) if reserved else "-", gib(program_reserved)),
        " to ".join(map(gib, ends)),
    ]


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
        ran[name]["digest"] = digest_of(task)
        print(name, ran[name], flush=True)
        stored = (f" {json.dumps(each)}: {json.dumps(peaks)}" for each, peaks in ran.items())
        RAN.write_text("{\n" + ",\n".join(stored) + "\n}\n")
    rows = [line(name, task, ran[name]) for name, task in tasks().items()]
    lines = [HEAD, ["---"] * len(HEAD), *rows]
    made = "\n".join(f"| {' | '.join(row)} |" for row in lines)
    PAGE.write_text(between_marks(PAGE.read_text(), "preference", COMMAND, made))


if __name__ == "__main__":
    main()
