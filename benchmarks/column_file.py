"""Measure time and memory to load a recording from its pickle and from its cached columns.

    python -m benchmarks.column_file [FILE ...] [--entries 1000000] [--runs 3] [-o FILE]

Without a FILE, it generates one: a ragged training loop of that number of entries, as
`allocsim synth` does.

Rule: every load is a separate process, and only the call of `load` is timed, in wall time and
processor time.  The first load also writes the columns.  Memory is the process's peak minus its
memory before the call.  The source is always in the system's page cache, because disks are not
measured.  Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from allocsim.workload import training, write_recording
from benchmarks.output import where_and_when

_PROGRAM = """
import json, sys, time
from pathlib import Path
import numpy
from allocsim import load
Path("/proc/self/clear_refs").write_text("5")  # the most so far is what there is now
def most():
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
before, begin, used = most(), time.perf_counter(), time.process_time()
recording = load(sys.argv[1])
wall, cpu = time.perf_counter() - begin, time.process_time() - used
entries = sum(map(len, recording.devices))
print(json.dumps([wall, cpu, (most() - before) / 1024, entries]))
"""
_Loaded = tuple[float, float, float, int]


def loaded(path: Path, folder: Path | None) -> _Loaded:
    """Return wall seconds, processor seconds, MiB and entries of one load.

    folder: folder for the cached columns; None to load without a cache.
    """
    environment = dict(os.environ)
    environment.pop("ALLOCSIM_NO_CACHE", None)
    if folder is None:
        environment["ALLOCSIM_NO_CACHE"] = "1"
    else:
        environment["ALLOCSIM_CACHE"] = str(folder)
    command = [sys.executable, "-c", _PROGRAM, str(path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    wall, cpu, memory, entries = json.loads(done.stdout)
    return wall, cpu, memory, entries


def lines(paths: list[Path], runs: int) -> Iterator[str]:
    """Yield the lines of the table."""
    yield (f"{where_and_when()}; {runs} runs, median")
    yield ""
    yield (
        "| file | MB | entries | pickle, s | processor | MiB | pickle and keep, s | processor "
        "| kept, MB | columns, s | processor | MiB |"
    )
    yield "|---" * 12 + "|"
    for path in paths:
        yield _line(path, runs)


def _line(path: Path, runs: int) -> str:
    plain: list[_Loaded] = []
    first: list[_Loaded] = []
    second: list[_Loaded] = []
    kept = 0
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            plain.append(loaded(path, None))
            first.append(loaded(path, Path(folder)))
            second.append(loaded(path, Path(folder)))
            kept = sum(file.stat().st_size for file in Path(folder).rglob("*.columns"))
    size, entries = path.stat().st_size, plain[0][3]
    slow, keeping, fast = map(_medians, (plain, first, second))
    return (
        f"| {path.name} | {size / 1e6:.0f} | {entries:,} | {slow[0]:.2f} | {slow[1]:.2f} "
        f"| {slow[2]:.0f} | {keeping[0]:.2f} | {keeping[1]:.2f} | {kept / 1e6:.0f} "
        f"| {fast[0]:.2f} | {fast[1]:.2f} | {fast[2]:.0f} |"
    )


def _medians(rows: list[_Loaded]) -> tuple[float, float, float]:
    wall, cpu, memory, _ = zip(*rows, strict=True)
    return median(wall), median(cpu), median(memory)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.column_file", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("files", metavar="FILE", nargs="*", type=Path)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("-o", "--output", type=Path, help="also write the table here")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        paths: list[Path] = arguments.files
        if not paths:
            paths = [Path(folder) / "training.pickle"]
            write_recording(training(entries=arguments.entries, ragged=True), paths[0])
        table = []
        for line in lines(paths, arguments.runs):
            print(line, flush=True)
            table.append(line)
    if arguments.output is not None:
        arguments.output.write_text("\n".join(table) + "\n")


if __name__ == "__main__":
    main()
