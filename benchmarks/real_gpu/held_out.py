"""Predictions for a card that no rule was read from, and what the card then did.

`traces/h100` has the recordings and counts of `python -m benchmarks.on_gpu OUT` on an H100.
`predicted.jsonl` has the counts of the same tasks over a phantom H100, which ran before the card.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from allocsim.editing import edit_devices
from allocsim.errors import AllocsimError
from allocsim.fitting import estimate, run_by_law
from allocsim.phantom import context_range, find_gpu
from allocsim.recording import load
from allocsim.replaying import prepare, replay_prepared
from allocsim.units import KIB, MIB
from benchmarks.on_gpu.tasks import LIMITS, TASKS, edit_name, edited_programs
from benchmarks.real_gpu.predictions import rows_by_id
from benchmarks.real_gpu.programs import programs_of, what_if_lines
from benchmarks.real_gpu.tables import bytes_text, error_text, signed_percent, table
from benchmarks.recent import Case

__all__ = ["H100", "PREDICTED", "held_out_sections", "held_out_summary", "predictions_from"]

H100 = Path(__file__).parents[2] / "traces" / "h100"
PREDICTED = H100 / "predicted.jsonl"
_ALLOCATED, _RESERVED = "allocated_bytes.all.peak", "reserved_bytes.all.peak"
_KEPT = (
    *("id", "task", _ALLOCATED, _RESERVED, "num_alloc_retries", "num_ooms", "oom_text"),
    *("device_memory", "torch", "transformers", "peft"),
)
_ASKED = re.compile(r"Tried to allocate ([\d.]+ \w+)")


def _rows(folder: Path, part: str) -> Mapping[str, Mapping[str, Any]]:
    return rows_by_id(folder / part / f"{part}.jsonl")


def predictions_from(phantom: Path) -> str:
    """Return the text of `predicted.jsonl` from the folder of a rehearsal over a phantom."""
    rows = {**_rows(phantom, "tasks"), **_rows(phantom, "limits")}
    kept = [{key: row[key] for key in _KEPT} for _, row in sorted(rows.items())]
    return "".join(json.dumps(row) + "\n" for row in kept)


@dataclass(frozen=True, slots=True)
class _Counted:
    """Counts of one task on the card, and of its prediction."""

    case: Case
    real: Mapping[str, Any]
    predicted: Mapping[str, Any]

    @property
    def is_exact(self) -> bool:
        """True if the peak of reserved memory was predicted to the byte."""
        return bool(self.real[_RESERVED] == self.predicted[_RESERVED])

    @property
    def error(self) -> float:
        """Signed error of the peak of reserved memory in per cent."""
        return signed_percent(self.real[_RESERVED], self.predicted[_RESERVED])

    @property
    def ends_alike(self) -> bool:
        """True if both completed, or failed at a request of the same printed size."""
        return _asked(self.real) == _asked(self.predicted)

    @property
    def context(self) -> int:
        """Bytes that the driver attributes to the process beside PyTorch's reserved memory."""
        return int(self.real["process_mib"] * MIB - self.real["reserved_bytes.all.current"])

    def otherwise(self) -> tuple[str, str]:
        """Return the engine that answers without PyTorch, and its error or range."""
        gpu, real = find_gpu(self.case.card), self.real[_RESERVED]
        try:
            return "law", error_text(real, run_by_law(self.case.task, gpu).peak_reserved_bytes)
        except AllocsimError:
            pass
        try:
            found = estimate(self.case.task, gpu)
        except AllocsimError:
            return "none", ""
        context = next(part.low for part in found.parts if part.name == "CUDA context")
        ends = found.process_bytes[0] - context, found.needed_bytes
        low, high = (signed_percent(real, each) for each in ends)
        return "formula", f"{low:+.1f} to {high:+.1f} %"


def _asked(row: Mapping[str, Any]) -> str:
    found = _ASKED.search(row["oom_text"] or "")
    return "" if found is None else found[1]


def _counted(cases: Sequence[Case], part: str) -> list[_Counted]:
    real, predicted = _rows(H100, part), rows_by_id(PREDICTED)
    return [_Counted(case, real[case.id], predicted[case.id]) for case in cases]


@cache
def held_out_sections() -> dict[str, list[str]]:
    """Return the lines of each table by name: a sentence in bold, then the table."""
    tasks, limits = _counted(TASKS, "tasks"), _counted(LIMITS, "limits")
    return {
        "tasks": _task_lines(tasks),
        "largest batches": _limit_lines(limits),
        "edits": _edit_lines(),
        "settings": _setting_lines(),
        "context": _context_lines([*tasks, *limits]),
        "graphs": _graph_lines(json.loads((H100 / "graphs.json").read_text())),
    }


def held_out_summary() -> str:
    """Return a sentence on the tasks and the largest batches."""
    tasks, limits = _counted(TASKS, "tasks"), _counted(LIMITS, "limits")
    worst = max(tasks, key=lambda each: abs(each.error))
    return (
        f"`allocsim fit` predicted {len(tasks)} trainings and servings for an H100 on a simulated "
        "card, before the real one was used and with its releases: "
        f"{sum(each.is_exact for each in tasks)} peaks of reserved memory are exact, the worst is "
        f"{worst.error:+.1f} %. For {_right(limits)} of {len(limits) // 2} models the largest "
        "batch that fits was right, too."
    )


def _task_lines(counted: Sequence[_Counted]) -> list[str]:
    exact = sum(each.is_exact for each in counted)
    worst = max(counted, key=lambda each: abs(each.error))
    rows = []
    for each in counted:
        engine, error = each.otherwise()
        rows.append(
            (
                each.case.task.text,
                bytes_text(each.real[_RESERVED]),
                error_text(each.real[_RESERVED], each.predicted[_RESERVED]),
                error_text(each.real[_ALLOCATED], each.predicted[_ALLOCATED]),
                f"{engine} {error}",
            )
        )
    first = (
        f"**{exact} of {len(counted)} peaks of reserved memory are exact; the worst is "
        f"{worst.case.task.model.name}, {worst.error:+.3f} %.**"
    )
    head = ("task", "reserved, bytes", "predicted", "allocated, predicted", "without PyTorch")
    return [first, "", *table(head, rows)]


def _right(limits: Sequence[_Counted]) -> int:
    """Return the number of pairs whose first run completed and whose second run failed."""
    pairs = zip(limits[::2], limits[1::2], strict=True)
    return sum(not fits.real["num_ooms"] and bool(over.real["num_ooms"]) for fits, over in pairs)


def _limit_lines(counted: Sequence[_Counted]) -> list[str]:
    rows = [
        (
            each.case.task.text,
            bytes_text(each.real[_RESERVED]),
            error_text(each.real[_RESERVED], each.predicted[_RESERVED]),
            _asked(each.real) or "completed",
            _asked(each.predicted) or "completed",
        )
        for each in counted
    ]
    first = (
        f"**{_right(counted)} of {len(counted) // 2} models: the largest batch that fits by "
        f"prediction completed, and one more sequence or image did not; in "
        f"{sum(each.ends_alike for each in counted)} of {len(counted)} runs the end is the "
        "predicted one, with the same failing request.**"
    )
    head = ("task", "reserved, bytes", "predicted", "failing request", "predicted")
    return [first, "", *table(head, rows)]


def _edits() -> Iterator[tuple[str, str, int, int]]:
    """Yield (program, edit, real peak, predicted peak) of each edit that the card ran."""
    base = None
    for program, edit in edited_programs():
        path = H100 / "edits" / f"{edit_name(program, edit)}.npz.gz"
        if not path.exists():
            continue
        devices = prepare(load(path))
        if not edit:
            base = devices
            continue
        assert base is not None
        runs = (replay_prepared(each) for each in (devices, edit_devices(base, [edit])))
        real, predicted = (run.devices[0].peak_reserved_bytes for run in runs)
        yield program, edit, real, predicted


def _edit_lines() -> list[str]:
    found = list(_edits())
    wrong = [each for each in found if each[2] != each[3]]
    rows = [
        (program, edit, bytes_text(real), error_text(real, predicted))
        for program, edit, real, predicted in found
    ]
    worst = max((abs(signed_percent(*each[2:])) for each in wrong), default=0)
    first = f"**{len(found) - len(wrong)} of {len(found)} edited programs have the predicted peak"
    if wrong:
        programs = " and ".join(sorted({each[0] for each in wrong}))
        first += f"; the others are of {programs}, {worst:.1f} % off at most"
    return [f"{first}.**", "", *table(("program", "edit", "reserved, bytes", "predicted"), rows)]


def _setting_lines() -> list[str]:
    found = programs_of(H100)
    return [
        f"**Replay: {found.whole} recordings are whole. What-if: {found.exact} peaks are exact.**",
        "",
        *what_if_lines(found.tried),
    ]


def _context_lines(counted: Sequence[_Counted]) -> list[str]:
    low, high = context_range(find_gpu("H100"))
    sizes = sorted(each.context for each in counted)
    steps = json.loads((H100 / "context.json").read_text())
    inside = sum(low <= size <= high for size in sizes)
    first = (
        f"**At the end of the {len(sizes)} runs the process held {sizes[0] / MIB:.0f} to "
        f"{sizes[-1] / MIB:.0f} MiB beside reserved memory; the range for this card is "
        f"{low / MIB:.0f} to {high / MIB:.0f} MiB ({inside} inside).**"
    )
    rows = [(step["what"], f"{step['beside'] / MIB:.1f}") for step in steps]
    return [first, "", *table(("after", "MiB beside reserved memory"), rows)]


def _graph_lines(found: Mapping[str, Any]) -> list[str]:
    rows, most, of_kind = [], 0, {}
    for row in found["graphs"]:
        taken, nodes = sum(row["capture"]) + sum(row["replay"]), row["graphs"] * row["nodes"]
        most += taken
        if taken:
            cells = (row["kind"], str(row["nodes"]), str(row["graphs"]), f"{taken / MIB:.0f}")
            of_kind[row["kind"]] = most / nodes / KIB  # graphs reuse what earlier ones released
            rows.append((*cells, f"{most / MIB:.0f}", f"{of_kind[row['kind']]:.2f}"))
    gpu = find_gpu("H100")
    stacks, held = [], 0
    for row in found["stacks"]:
        held += row["first"]
        stack = row["stack"]
        stacks.append((f"{stack:,}", f"{held:,}", f"{held / gpu.threads + KIB:,.1f}"))
    head = ("node", "nodes of a graph", "graphs", "MiB taken", "MiB taken so far", "KiB per node")
    last = ("stack of the kernel, bytes", "bytes taken so far", "bytes per thread, with 1 KiB")
    return [
        "**Graphs take the driver's memory in steps of 2 MiB, and later graphs reuse what released "
        f"ones held: at most {of_kind['add']:.2f} KiB for each node of an elementwise kernel, and "
        f"{of_kind['matmul 64']:.2f} KiB for each matrix product.**",
        "",
        *table(head, rows),
        "",
        *table(last, stacks),
    ]
