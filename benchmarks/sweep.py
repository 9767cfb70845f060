"""Settings times entries a second of `allocsim tune`, on a recording of a million entries.

    python -m benchmarks.sweep FILE [--jobs 2]      a free search over FILE, under the clock

Settings count once for each different outcome (peak, retries, driver calls; of one that was given
up the figures up to there); those that the search proves equal or finds equal count once
together.  Where the real allocator's library is at hand (`python -m allocsim.phantom fetch`), it
answers the requests of FILE before and after, under the default settings, and the ratio is to the
entries a second of that.  A ragged recording of training:

    allocsim record --device-memory 48GiB -o ragged.pickle -- \\
        python traces/programs/gpt2_training.py --steps 330

and a regular one: allocsim synth training --entries 1000000 -o regular.npz
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from datetime import UTC, datetime
from statistics import median

from allocsim.engine import Prepared, prepare
from allocsim.engine.plan import StepKind
from allocsim.phantom import PhantomError
from allocsim.questions.crosscheck import RealAllocator, Script
from allocsim.questions.crosscheck.script import Op
from allocsim.questions.tune import tune
from allocsim.questions.tune.row import Row
from allocsim.trace import load
from allocsim.units import parse_size


def outcome(row: Row) -> tuple[object, ...]:
    """What tells two settings apart."""
    calls = (row.num_alloc_retries, row.num_device_alloc, row.num_device_free)
    return (row.peak_reserved_bytes, *calls)


def as_script(prepared: Prepared, device_memory: int) -> Script:
    """The requests and frees of a device's recording, its streams numbered."""
    streams: dict[int, int] = {}
    ops: list[Op] = []
    steps = prepared.free_plan.steps
    for kind, addr, size, stream in steps.rows(0, len(steps)):
        if kind == StepKind.ALLOC:
            ops.append(["a", addr, size, streams.setdefault(stream, len(streams))])
        elif kind in (StepKind.FREE, StepKind.FREE_REQUEST):
            ops.append(["f", addr])
    numbers = {name: number for number, name in enumerate(dict.fromkeys(op[1] for op in ops))}
    return Script([[op[0], numbers[op[1]], *op[2:]] for op in ops], device_memory)


class Real:
    """The real allocator under the requests of `path`; `rates`: entries a second, as measured."""

    def __init__(self, path: str, device_memory: int, entries: int) -> None:
        prepared = prepare(load(path), 0)[0]
        self._script = as_script(prepared, device_memory)
        self._allocator = RealAllocator(prepared.release.version)
        self._entries = entries
        self.rates: list[float] = []

    def measure(self) -> None:
        """Three passes in a process of its own."""
        self.rates += [self._entries / seconds for seconds in self._allocator.time(self._script)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("file")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--memory", default="48GiB")
    options = parser.parse_args()
    try:
        real = Real(options.file, parse_size(options.memory), len(load(options.file).device(0)))
        real.measure()
    except PhantomError as error:
        real = None
        print(f"no ratio: {error}", file=sys.stderr)
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
    if real is not None:
        real.measure()
        own = median(real.rates)
        print(f"the real allocator: {own:,.0f} entries a second; the sweep {rate / own:.2f} of it")


if __name__ == "__main__":
    main()
