"""Measure the time of `allocsim ranks` for a job with very many ranks.

    python -m benchmarks.ranks [--ranks N] [--entries N] [--jobs N] [-o FILE]

The files are training loops with the given number of entries, one for each of fifty seeds, repeated
for further ranks; the command does not know of the repetition.  Printed are wall time, processor
time of all processes and the largest memory of one process.  Some three minutes for a thousand
ranks on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from allocsim.units import MIB
from benchmarks.output import add_output, machine_and_month, show

_SEEDS = 50
_ALLOCSIM = (sys.executable, "-m", "allocsim")


def make(folder: Path, ranks: int, entries: int) -> None:
    """Write the recordings of a job with `ranks` ranks of `entries` entries to `folder`."""
    for rank in range(ranks):
        path = folder / f"rank{rank}.pickle"
        if rank >= _SEEDS:
            shutil.copyfile(folder / f"rank{rank % _SEEDS}.pickle", path)
            continue
        asked = ["synth", "training", "--ragged", "--entries", str(entries), "--seed", str(rank)]
        subprocess.run([*_ALLOCSIM, *asked, "-o", str(path)], check=True, capture_output=True)


def main(arguments: Sequence[str]) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ranks")
    parser.add_argument("--ranks", type=int, default=1000)
    parser.add_argument("--entries", type=int, default=10_000)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    add_output(parser)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "job"
        folder.mkdir()
        make(folder, options.ranks, options.entries)
        page = Path(scratch) / "ranks.html"
        command = [*_ALLOCSIM, "ranks", str(folder), "--jobs", str(options.jobs), "--json"]
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        done = subprocess.run([*command, "-o", str(page)], check=True, capture_output=True)
        wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        document = json.loads(done.stdout)
        size = page.stat().st_size
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    entries = sum(each["entries"] for each in document["ranks"])
    exact = sum(each["is_as_recorded"] for each in document["ranks"])
    text = (
        f"{len(document['ranks'])} ranks, {entries:,} entries, {exact} replays as recorded: "
        f"{wall:.0f} s, {spent:.0f} s of processor time, {options.jobs} processes, "
        f"{after.ru_maxrss * 1024 / MIB:.0f} MiB at most in one; the page {size / MIB:.1f} MiB.\n"
        f"Python {platform.python_version()}, {machine_and_month()}; "
        "`python -m benchmarks.ranks`.\n"
    )
    show(text, options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
