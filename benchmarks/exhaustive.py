"""Measure the time of `allocsim tune`, and of an exhaustive search over the same settings.

    python -m benchmarks.exhaustive [FILE ...]     every recording of the phantom if none is given

The exhaustive search replays every setting to its end without optimizations, and finds the smallest
device without a refused request by replays (`allocsim tune --exhaustive`).  Both use one process.
"""

from __future__ import annotations

import argparse
import platform
import time
from datetime import UTC, datetime
from pathlib import Path

from allocsim.analysis.tune import EXHAUSTIVE, Tricks, tune

TRACES = Path(__file__).parents[1] / "traces"


def seconds(path: Path, tricks: Tricks) -> float:
    """Return the seconds of one search, including reading the file."""
    begin = time.perf_counter()
    tune(path, tricks=tricks)
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("files", nargs="*", type=Path)
    files = parser.parse_args().files or sorted(
        path for path in TRACES.rglob("*.gz") if "h200" not in path.parts
    )
    print(
        f"{platform.machine()}, CPython {platform.python_version()}, {datetime.now(UTC):%Y-%m-%d}"
    )
    totals = [0.0, 0.0]
    for path in files:
        took = [seconds(path, tricks) for tricks in (Tricks(), EXHAUSTIVE)]
        totals = [total + one for total, one in zip(totals, took, strict=True)]
        print(f"{path.name}: {took[0]:.1f} s, exhaustive {took[1]:.1f} s", flush=True)
    print(
        f"{len(files)} recordings: {totals[0]:.0f} s, exhaustive {totals[1]:.0f} s, "
        f"{totals[1] / totals[0]:.1f} times as long"
    )


if __name__ == "__main__":
    main()
