"""What a measurement prints: where and when it was made, and the same again in a file.

Rule: figures of a shared machine say so.
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
    """The option -o, a file for what is printed."""
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="to write it to as well")


def show(text: str, output: Path | None) -> None:
    """Print `text`, and write it to `output` if that is given."""
    print(text, end="")
    if output is not None:
        output.write_text(text, encoding="utf-8")


def machine_and_month() -> str:
    """The processor's kind, how many cores it has, and now."""
    cores = f"{os.cpu_count()} cores shared with other work"
    return f"{platform.machine()}, {cores}, {datetime.now(UTC):%B %Y}"


def where_and_when() -> str:
    """The processors of this machine, the interpreter and the day."""
    return (
        f"{platform.machine()}, {processor()}, CPython {platform.python_version()}, "
        f"{datetime.now(UTC):%Y-%m-%d}"
    )


def facts(release: str) -> dict[str, object]:
    """What a figure depends on: the machine, the interpreter, the form of the core, the day."""
    return {
        "machine": platform.machine(),
        "processors": processor(),
        "python": platform.python_version(),
        "torch_version": release,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "is_compiled": IS_COMPILED,
    }


def form() -> str:
    """Whether the core that was measured is the plain one or the compiled one."""
    return "compiled by Cython" if IS_COMPILED else "in plain Python"


def processor() -> str:
    """The processors of this machine, in words."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown processor"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(names)} x {names[0]}" if names else "unknown processor"


def spread(figures: Sequence[float]) -> dict[str, float]:
    """Of several runs the median, the lowest and the highest."""
    return {"median": median(figures), "lowest": min(figures), "highest": max(figures)}
