"""Measure time and memory of complete commands, by the number of entries of the recording.

    python -m benchmarks.commands [--entries 10000 100000 1000000] [--runs 3] [--json]
    python -m benchmarks.commands --against OLD     alternate with another checkout

Each command is a new process that finds the bytecode and the column file of an earlier run, as a
user's second run does.  Memory is the largest resident size of one of its processes.  Recordings
are synthetic training loops of ragged lengths, written by `allocsim synth`.  With OLD, another
checkout of this package, each run is followed by the same run there, and the ratio is that of the
two: a regression is a ratio outside their spread.  Ten million entries (`--entries 10000000`) take
ten minutes for the four commands of benchmarks/results/commands.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from allocsim.core import NEWEST
from allocsim.units import MIB
from benchmarks.output import add_output, facts, form, show, spread, where_and_when

HERE = Path(__file__).parents[1]
COMMANDS = {
    "replay": ("replay", "FILE"),
    "replay --no-cure": ("replay", "--no-cure", "FILE"),
    "explain": ("explain", "FILE"),
    "tune": ("tune", "FILE", "--jobs", "2"),
    "report": ("report", "FILE", "-o", "PAGE"),
    "top": ("top", "FILE"),
    "risk": ("risk", "FILE"),
    "stats": ("stats", "FILE"),
}


@dataclass(frozen=True)
class Cost:
    """Wall time and processor time in seconds, and peak memory in bytes."""

    seconds: float
    processor_seconds: float
    memory: int


@dataclass
class Row:
    """Costs of one command on one recording, by run.

    entries: number of entries of the recording.
    new, old: costs in this and in the other checkout; `old` is empty without another checkout.
    """

    command: str
    entries: int
    new: list[Cost] = field(default_factory=list)
    old: list[Cost] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        """Seconds of each run, divided by the seconds of the same run in the other checkout."""
        pairs = zip(self.new, self.old, strict=bool(self.old))
        return [mine.seconds / other.seconds for mine, other in pairs]


def spent(
    arguments: Sequence[str], checkout: Path, bytecode: Path, installed: str | None = None
) -> Cost:
    """Run a command of the package in `checkout`, and return its cost.

    bytecode: folder for compiled modules.
    installed: `allocsim` command to run instead of `checkout`, which is then an empty folder.

    Raises CalledProcessError for exit codes other than 0 and 3.
    """
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    program = [sys.executable, "-m", "allocsim"] if installed is None else [installed]
    command = [*program, *arguments]
    begin = time.perf_counter()
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command,
            cwd=checkout,
            env={**kept, "PYTHONPATH": str(checkout), "PYTHONPYCACHEPREFIX": str(bytecode)},
            stdout=subprocess.DEVNULL,
            stderr=errors,
        )
        _, status, used = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode not in (0, 3):
            errors.seek(0)
            raise subprocess.CalledProcessError(process.returncode, command, stderr=errors.read())
    return Cost(seconds, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024)


def measure(
    commands: Sequence[str], entries: Sequence[int], runs: int, old: Path | None
) -> list[Row]:
    """Return the costs of every command on a recording of each length, without the first run."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="allocsim-") as place:
        bytecode = Path(place) / "bytecode"
        for count in entries:
            path = Path(place) / f"ragged-{count}.pickle"
            made = ("synth", "training", "--ragged", "--entries", str(count), "-o", str(path))
            spent(made, HERE, bytecode)
            for name in commands:
                row = Row(name, count)
                names = {"FILE": str(path), "PAGE": str(Path(place) / "page.html")}
                arguments = [names.get(word, word) for word in COMMANDS[name]]
                for run in range(runs + 1):
                    costs = [spent(arguments, tree, bytecode) for tree in (HERE, old) if tree]
                    if run > 0:
                        row.new.append(costs[0])
                        row.old += costs[1:]
                rows.append(row)
                print(f"{name}, {count:,} entries: {row.new[-1].seconds:.2f} s", file=sys.stderr)
    return rows


def table(rows: Sequence[Row]) -> str:
    """Return the rows as Markdown."""
    is_pair = any(row.old for row in rows)
    heads = ["command", "entries", "s", "of the processor, s", "memory, MiB"]
    heads += ["old, s", "new of old (lowest to highest)"] if is_pair else []
    lines = [
        f"{where_and_when()}; the core {form()}; {len(rows[0].new)} runs, medians",
        "",
        f"| {' | '.join(heads)} |",
        "|---" * len(heads) + "|",
    ]
    for row in rows:
        cells = [
            f"`{row.command}`",
            f"{row.entries:,}",
            f"{median(cost.seconds for cost in row.new):.2f}",
            f"{median(cost.processor_seconds for cost in row.new):.2f}",
            f"{median(cost.memory for cost in row.new) / MIB:,.0f}",
        ]
        if row.old:
            ratios = row.ratios
            cells.append(f"{median(cost.seconds for cost in row.old):.2f}")
            cells.append(f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def document(rows: Sequence[Row]) -> str:
    """Return the rows as JSON."""
    found = []
    for row in rows:
        figures: dict[str, list[float]] = {"ratio": row.ratios}
        for name, costs in (("new", row.new), ("old", row.old)):
            figures[f"{name}_seconds"] = [cost.seconds for cost in costs]
            figures[f"{name}_processor_seconds"] = [cost.processor_seconds for cost in costs]
            figures[f"{name}_memory_bytes"] = [float(cost.memory) for cost in costs]
        spreads = {name: spread(runs) for name, runs in figures.items() if runs}
        found.append({"command": row.command, "entries": row.entries, **spreads})
    about = {**facts(NEWEST), "runs": len(rows[0].new)}
    return json.dumps({**about, "commands": found}, indent=2) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.commands")
    parser.add_argument("--entries", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--commands", nargs="+", choices=COMMANDS, default=list(COMMANDS))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--against", metavar="OLD", type=Path, help="another checkout")
    parser.add_argument("--json", action="store_true")
    add_output(parser)
    options = parser.parse_args()
    old = None if options.against is None else options.against.resolve()
    if old is not None and not (old / "allocsim" / "__init__.py").is_file():
        parser.error(f"--against {options.against} does not contain the package allocsim")
    rows = measure(options.commands, options.entries, options.runs, old)
    show((document if options.json else table)(rows), options.output)


if __name__ == "__main__":
    main()
