"""Tables of `docs/real-gpu.md`.

    python -m benchmarks.real_gpu          print the tables
    python -m benchmarks.real_gpu docs     write them into docs/real-gpu.md

Programs and driver times are computed from `traces/h200`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from allocsim.cli.reference import between_marks
from benchmarks.driver_times import H200, lines_of, times_of
from benchmarks.real_gpu.programs import program_lines

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "real-gpu.md"
COMMAND = "python -m benchmarks.real_gpu docs"


def sections(folder: Path) -> dict[str, list[str]]:
    """Return the tables of a card's folder, by the name of their marks."""
    return {
        "programs": program_lines(folder),
        "driver times": lines_of(times_of(folder)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("where", nargs="?", choices=("docs",))
    given = parser.parse_args()
    found = sections(H200)
    if given.where is None:
        print("\n\n".join("\n".join(lines) for lines in found.values()))
        return
    text = PAGE.read_text()
    for name, lines in found.items():
        text = between_marks(text, name, COMMAND, "\n".join(lines))
    PAGE.write_text(text)


if __name__ == "__main__":
    main()
