"""Print the results of a measurement, and write them to a file if requested.

Rule: the output names the machine and the date, and says if the machine was shared.
"""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from allocsim.core import IS_COMPILED


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add the option -o to `parser`, which names a file for a copy of the output."""
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, help="also write the output here"
    )


def show(text: str, output: Path | None) -> None:
    """Print `text`, and write it to `output` if given."""
    print(text, end="")
    if output is not None:
        output.write_text(text, encoding="utf-8")


def machine_and_month() -> str:
    """Return the machine's architecture, its number of cores and the month."""
    cores = f"{os.cpu_count()} cores shared with other work"
    return f"{platform.machine()}, {cores}, {datetime.now(UTC):%B %Y}"


def where_and_when() -> str:
    """Return the processors, the interpreter and the date."""
    return (
        f"{platform.machine()}, {processor()}, CPython {platform.python_version()}, "
        f"{datetime.now(UTC):%Y-%m-%d}"
    )


def facts(release: str) -> dict[str, object]:
    """Return the conditions of a measurement: machine, interpreter, form of the core, date."""
    return {
        "machine": platform.machine(),
        "processors": processor(),
        "python": platform.python_version(),
        "torch_version": release,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "is_compiled": IS_COMPILED,
    }


def form() -> str:
    """Return the form of the measured core: plain Python or compiled."""
    return "compiled by Cython" if IS_COMPILED else "in plain Python"


def processor() -> str:
    """Return the processors of this machine as text."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown processor"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(names)} x {names[0]}" if names else "unknown processor"


def spread(figures: Sequence[float]) -> dict[str, float]:
    """Return the median, the lowest and the highest of the results of several runs."""
    return {"median": median(figures), "lowest": min(figures), "highest": max(figures)}
