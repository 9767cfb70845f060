"""Measure how far laws are from programs of other releases than theirs.

    python -m benchmarks.drift --python PATH [ID ...]
    python -m benchmarks.drift --docs

The Python at PATH, with other releases of PyTorch and transformers, runs the tasks of
traces/fit/truth.jsonl that have a law, and some servings with eager attention, as `fit` does, over
the phantom of their card (an hour of two cores).  results/drift.csv has both peaks of reserved
memory.  --docs compares the ranges of `fit` with them and with the tasks of traces/h100 and
traces/h200, and writes the table of docs/reference/laws.md.
"""

from __future__ import annotations

import argparse
import csv
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from allocsim.errors import AllocsimError
from allocsim.fitting import Task, run_by_law, run_program
from allocsim.fitting.fit_result import drift_of
from allocsim.phantom import Gpu, find_gpu
from benchmarks.on_gpu.tasks import TASKS
from benchmarks.real_gpu.held_out import H100
from benchmarks.real_gpu.predictions import case_rows, rows_by_id
from benchmarks.recent import Case
from benchmarks.truth import gpu_of, rows, task_of
from tests.reference import between_marks

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "laws.md"
RESULTS = Path(__file__).parent / "results" / "drift.csv"
COMMAND = "python -m benchmarks.drift --docs"
_NAMES = ("id", "task", "torch", "law", "program")
_TEXTS = ("training", "serving", "serving, eager attention")
_EAGER = {"is_training": False, "attention": "eager", "decode": 16}
EAGER = (
    Case("eager-1", "Qwen2.5-0.5B", "L4", {**_EAGER, "prompt": 512, "batch": 4}),
    Case("eager-2", "Qwen2.5-1.5B", "RTX 4090", {**_EAGER, "prompt": 2048, "batch": 2}),
    Case("eager-3", "Llama-3.2-1B", "RTX 4090", {**_EAGER, "prompt": 1024, "batch": 8}),
    Case("eager-4", "Llama-3-8B", "A100 80GB", {**_EAGER, "prompt": 3000, "batch": 2}),
    Case("eager-6", "Gemma-2-2B", "RTX 4090", {**_EAGER, "prompt": 1000, "batch": 2}),
)
"""Servings with eager attention; truth.jsonl has only two."""


@dataclass(frozen=True, slots=True)
class Compared:
    """Peaks of reserved memory of one task, in bytes: by law, and in another release."""

    kind: str
    law: int
    other: int
    ends: tuple[int, int]

    @property
    def change(self) -> float:
        return 100 * (self.other / self.law - 1)

    @property
    def is_inside(self) -> bool:
        return self.ends[0] <= self.other <= self.ends[1]


def compared(task: Task, gpu: Gpu, other: int) -> Compared | None:
    """Compare the peak of a task in another release with its law; None without a law."""
    try:
        law = run_by_law(task, gpu)
    except AllocsimError:
        return None
    drift = drift_of(task, law.torch_version, str(law.transformers), torch="2.11", meant=None)
    assert drift is not None
    kind = _TEXTS[0 if task.is_training else 1 + (task.attention == "eager")]
    return Compared(kind, law.peak_reserved_bytes, other, drift.of(law.peak_reserved_bytes))


def tasks(folder: Path) -> Iterator[tuple[str, str, Task, Gpu]]:
    """Yield id, description, task and card of each task of the phantom.

    folder: an empty folder for configurations.
    """
    for case in EAGER:
        yield case.id, case.task.text, case.task, find_gpu(case.card)
    for row in random.Random(51).sample(rows(), len(rows())):
        task = task_of(row, folder)
        yield row["id"], task.text.replace(row["id"], row["model"]), task, gpu_of(row)


def run(name: str, text: str, task: Task, gpu: Gpu, python: str) -> None:
    """Compare one task, and store the result; a task without a law is left out."""
    try:
        law = run_by_law(task, gpu)
        ran = run_program(task, gpu, python=python)
    except AllocsimError as error:
        print(f"{name}: {error}", flush=True)
        return
    if law.is_out_of_memory or ran.is_out_of_memory:
        return
    made = (name, text, ran.torch_version, law.peak_reserved_bytes, ran.peak_reserved_bytes)
    print(*made, sep=" | ", flush=True)
    is_new = not RESULTS.exists()
    with RESULTS.open("a") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([_NAMES] * is_new)
        writer.writerow(made)


def on_phantom(folder: Path) -> Iterator[Compared | None]:
    with RESULTS.open() as file:
        known = {row["id"]: int(row["program"]) for row in csv.DictReader(file)}
    for name, _, task, gpu in tasks(folder):
        if name in known:
            yield compared(task, gpu, known[name])


def on_h100() -> Iterator[Compared | None]:
    real = rows_by_id(H100 / "tasks" / "tasks.jsonl")
    for case in TASKS:
        peak = real[case.id]["reserved_bytes.all.peak"]
        yield compared(case.task, find_gpu(case.card), peak)


def on_h200(folder: Path) -> Iterator[Compared | None]:
    real = case_rows(H100.parent / "h200")
    for row in rows():
        if row["id"] in real:
            there = real[row["id"]]["peak_reserved"]
            yield compared(task_of(row, folder), find_gpu("H200"), there)


def table(found: Sequence[tuple[str, Iterator[Compared | None]]]) -> str:
    """Return a table with one line for each kind of task and origin of the peaks."""
    lines = [
        "| task | peaks from | tasks | least | median | most | inside |",
        "|---|---|" + "---|" * 5,
    ]
    known = [(origin, [each for each in rows if each is not None]) for origin, rows in found]
    for kind in _TEXTS:
        for origin, every in known:
            some = sorted((each for each in every if each.kind == kind), key=lambda at: at.change)
            if some:
                marks = (some[0], some[len(some) // 2], some[-1])
                changes = " | ".join(f"{each.change:+.2f} %" for each in marks)
                inside = sum(each.is_inside for each in some)
                lines.append(f"| {kind} | {origin} | {len(some)} | {changes} | {inside} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--python")
    parser.add_argument("--docs", action="store_true")
    parser.add_argument("ids", nargs="*")
    given = parser.parse_args()
    with TemporaryDirectory() as place, TemporaryDirectory() as other:
        if not given.docs:
            for name, text, task, gpu in tasks(Path(place)):
                if not given.ids or name in given.ids:
                    run(name, text, task, gpu, given.python)
            return
        real = ("an H100", on_h100()), ("an H200", on_h200(Path(other)))
        made = table([("a phantom", on_phantom(Path(place))), *real])
    PAGE.write_text(between_marks(PAGE.read_text(), "drift", COMMAND, made))


if __name__ == "__main__":
    main()
