"""What a measurement prints: where and when it was made, and the same again in a file.

Rule: figures of a shared machine say so.
"""

from __future__ import annotations

import argparse
import os
import platform
from datetime import UTC, datetime
from pathlib import Path


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
