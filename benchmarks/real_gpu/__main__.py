"""Tables of `docs/evidence/real-gpu.md` and `benchmarks/results/real-gpu.md`.

    python -m benchmarks.real_gpu                        print the tables
    python -m benchmarks.real_gpu docs                   write them into both pages, and a summary
                                                         into README.md
    python -m benchmarks.real_gpu predictions FOLDER     write benchmarks/results/h200-phantom.json
    python -m benchmarks.real_gpu held-out FOLDER        write traces/h100/predicted.jsonl

Programs and driver times are computed from `traces/h200`.  Cases and kernels need PyTorch over the
phantom: FOLDER is what `python -m benchmarks.on_gpu FOLDER --phantom CARD` wrote.
"""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.driver_times import H200
from benchmarks.real_gpu.comparison import comparison_lines, sections, summary
from benchmarks.real_gpu.held_out import (
    PREDICTED,
    held_out_sections,
    held_out_summary,
    predictions_from,
)
from benchmarks.real_gpu.predictions import RESULTS, predictions_of, read_predictions
from tests.reference import between_marks

ROOT = Path(__file__).parents[2]
PAGE, README = ROOT / "docs" / "evidence" / "real-gpu.md", ROOT / "README.md"
DETAILS = ROOT / "benchmarks" / "results" / "real-gpu.md"
COMMAND = "python -m benchmarks.real_gpu docs"
SECTIONS = ("programs", "cases", "kernels", "driver times")
"""Sections with their tables in `DETAILS`; the page has their sentences only."""


def page() -> str:
    """Return the text of docs/evidence/real-gpu.md with new tables."""
    predicted = read_predictions()
    text, found = PAGE.read_text(), sections(H200, predicted)
    versions = (
        f"Predictions of cases and kernels: PyTorch {predicted['torch']}, transformers "
        f"{predicted['transformers']}, Python {predicted['python']}, without a GPU, "
        f"{predicted['date']}, by `{predicted['command']}`."
    )
    text = between_marks(text, "predictions", COMMAND, versions)
    for name in SECTIONS:
        text = between_marks(text, name, COMMAND, "\n".join(_sentences(found[name])))
    for name, lines in held_out_sections().items():
        text = between_marks(text, name, COMMAND, "\n".join(_sentences(lines)))
    return text


def details() -> str:
    """Return the page of details with its tables written again."""
    text, found = DETAILS.read_text(), sections(H200, read_predictions())
    for name in SECTIONS:
        text = between_marks(text, name, COMMAND, "\n".join(found[name]))
    for name, lines in held_out_sections().items():
        text = between_marks(text, name, COMMAND, "\n".join(lines))
    return text


def _sentences(lines: Sequence[str]) -> list[str]:
    """Return the lines outside tables, with one empty line between them."""
    kept = [line for line in lines if line and not line.startswith("|")]
    return "\n\n".join(kept).splitlines()


def readme() -> str:
    """Return the text of README.md with a new summary."""
    said = f"{held_out_summary()} {summary(H200)}"
    lines = textwrap.fill(said, 120, break_on_hyphens=False)
    return between_marks(README.read_text(), "real gpu", COMMAND, lines)


def _by_line(found: Mapping[str, Any]) -> str:
    """Return JSON with one line for each case and each shape."""
    lines = []
    for name, value in found.items():
        if name == "cases":
            rows = [f"{json.dumps(key)}: {json.dumps(row)}" for key, row in value.items()]
            lines.append('"cases": {\n' + ",\n".join(rows) + "\n}")
        elif name == "kernels":
            kinds = []
            for kind, shapes in value.items():
                rows = [json.dumps(shape) for shape in shapes]
                kinds.append(f"{json.dumps(kind)}: [\n" + ",\n".join(rows) + "\n]")
            lines.append('"kernels": {\n' + ",\n".join(kinds) + "\n}")
        else:
            lines.append(f"{json.dumps(name)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(lines) + "\n}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.real_gpu")
    parser.add_argument("what", nargs="?", choices=("docs", "predictions", "held-out"))
    parser.add_argument("folder", nargs="?", type=Path)
    given = parser.parse_args()
    if given.what == "docs":
        PAGE.write_text(page())
        DETAILS.write_text(details())
        README.write_text(readme())
    elif given.what is not None:
        if given.folder is None:
            parser.error(f"{given.what} needs the folder that benchmarks.on_gpu wrote")
        if given.what == "held-out":
            PREDICTED.write_text(predictions_from(given.folder))
        else:
            RESULTS.write_text(_by_line(predictions_of(H200, given.folder)) + "\n")
    else:
        print("\n".join(comparison_lines(H200, read_predictions())))


if __name__ == "__main__":
    main()
