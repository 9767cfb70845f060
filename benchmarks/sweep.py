"""Settings times entries a second of `allocsim tune`, on a recording of a million entries.

    python -m benchmarks.sweep FILE [--jobs 2]      a free search over FILE, under the clock

Settings count once for each different outcome (peak, retries, driver calls); those that the search
proves equal or finds equal count once together.  A ragged recording of training:

    allocsim record --device-memory 48GiB -o ragged.pickle -- \\
        python traces/programs/gpt2_training.py --steps 330

and a regular one: allocsim synth training --entries 1000000 -o regular.npz
"""

from __future__ import annotations

import argparse
import platform
import time
from datetime import UTC, datetime

from allocsim.tuning import tune
from allocsim.tuning.row import Row


def outcome(row: Row) -> tuple[object, ...]:
    """What tells two settings apart."""
    calls = (row.num_alloc_retries, row.num_device_alloc, row.num_device_free)
    return (row.peak_reserved_bytes, *calls, row.dropped_at)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("file")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--memory", default="48GiB")
    options = parser.parse_args()
    begin = time.perf_counter()
    found = tune(options.file, options.memory, jobs=options.jobs)
    seconds = time.perf_counter() - begin
    distinct = len({outcome(row) for row in found.rows})
    rate = distinct * found.entries / seconds
    print(
        f"{platform.machine()}, CPython {platform.python_version()}, {options.jobs} processes, "
        f"{datetime.now(UTC):%Y-%m-%d}\n"
        f"{found.entries:,} entries, {len(found.rows)} settings, {distinct} distinct: "
        f"{seconds:.1f} s, {rate:,.0f} settings x entries a second; "
        f"{found.entries_replayed:,} entries replayed, {found.entries_skipped:,} skipped"
    )


if __name__ == "__main__":
    main()
