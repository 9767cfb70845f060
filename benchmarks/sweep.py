r"""Measure the rate of `allocsim tune`: settings times entries per second.

    python -m benchmarks.sweep FILE [--jobs 2]      time a search over FILE
    python -m benchmarks.sweep FILE --runs 5        five runs, and the real allocator
    python -m benchmarks.sweep FILE --json          the same as JSON: medians, lowest and highest

Settings with equal outcomes (peak, retries, driver calls, also of abandoned replays) count once.
If the real allocator's library is available (`python -m allocsim.phantom fetch`), it runs the
requests of FILE before and after each search under the default settings, and the ratio is to its
entries per second.  To make a ragged recording of training:

    allocsim record --device-memory 48GiB -o ragged.pickle -- \
        python traces/programs/gpt2_training.py --steps 330

and a regular one: allocsim synth training --entries 1000000 -o regular.npz
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import dataclass
from statistics import median

from allocsim.analysis.tune import tune
from allocsim.analysis.tune.results import SettingRow
from allocsim.errors import PhantomError
from allocsim.recording import load
from allocsim.replaying import Prepared, prepare
from allocsim.simulation.plan import StepKind
from allocsim.units import parse_size
from allocsim.verify import RealAllocator, Script
from allocsim.verify.script import Op
from benchmarks.output import add_output, facts, form, show, spread, where_and_when
from benchmarks.speed import PASSES


def outcome(row: SettingRow) -> tuple[object, ...]:
    """Return the figures by which two settings are distinguished."""
    calls = (row.num_alloc_retries, row.num_device_alloc, row.num_device_free)
    return (row.peak_reserved_bytes, *calls)


def as_script(prepared: Prepared, device_memory: int) -> Script:
    """Return the requests and frees of a recording as an op script."""
    streams: dict[int, int] = {}
    ops: list[Op] = []
    steps = prepared.free_plan.steps
    columns = (steps.kind, steps.addr, steps.size, steps.stream)
    for kind, addr, size, stream in zip(*(column.tolist() for column in columns), strict=True):
        if kind == StepKind.ALLOC:
            ops.append(["a", addr, size, streams.setdefault(stream, len(streams))])
        elif kind in (StepKind.FREE, StepKind.FREE_REQUEST):
            ops.append(["f", addr])
    numbers = {name: number for number, name in enumerate(dict.fromkeys(op[1] for op in ops))}
    return Script([[op[0], numbers[op[1]], *op[2:]] for op in ops], device_memory)


class Real:
    """Real allocator that runs the requests of the recording at `path`.

    rates: entries per second of each measurement.
    """

    def __init__(self, path: str, device_memory: int, entries: int) -> None:
        prepared = prepare(load(path), 0)[0]
        self._script = as_script(prepared, device_memory)
        self._allocator = RealAllocator(prepared.release.version)
        self._entries = entries
        self.rates: list[float] = []

    def measure(self) -> None:
        """Run some passes in a new process."""
        self.rates += [
            self._entries / seconds for seconds in self._allocator.time(self._script, PASSES)
        ]


@dataclass(frozen=True)
class Found:
    """Repeated searches over one recording.

    settings, distinct: number of settings, and of those with different results.
    replayed, skipped: number of entries that all replays simulated, and that they skipped.

    seconds: duration of each search.
    processor_seconds: processor time of each search, summed over processes.
    real: the real allocator's entries per second around each search; empty without its library.
    """

    release: str
    jobs: int
    entries: int
    settings: int
    distinct: int
    replayed: int
    skipped: int
    seconds: tuple[float, ...]
    processor_seconds: tuple[float, ...]
    real: tuple[float, ...] = ()

    @property
    def rates(self) -> list[float]:
        """Distinct settings times entries per second, for each search."""
        return [self.distinct * self.entries / seconds for seconds in self.seconds]

    @property
    def shares(self) -> list[float]:
        """Rate of each search, divided by the entries per second of the real allocator then."""
        return [rate / real for rate, real in zip(self.rates, self.real, strict=False)]


def measure(path: str, memory: str, jobs: int, runs: int) -> Found:
    """Run some passes in a new process."""
    entries = len(load(path).device(0))
    real: Real | None = None
    try:
        real = Real(path, parse_size(memory), entries)
        real.measure()
    except PhantomError as error:
        print(f"no ratio: {error}", file=sys.stderr)
    seconds, of_processor, around = [], [], []
    for _ in range(runs):
        begin, before = time.perf_counter(), _processor_seconds()
        found = tune(path, memory, jobs=jobs)
        seconds.append(time.perf_counter() - begin)
        of_processor.append(_processor_seconds() - before)
        if real is not None:
            real.measure()
            around.append(median(real.rates[-2 * PASSES :]))
    return Found(
        release=found.torch_version,
        jobs=jobs,
        entries=found.entries,
        settings=len(found.rows),
        distinct=len({outcome(row) for row in found.rows}),
        replayed=found.entries_replayed,
        skipped=found.entries_skipped,
        seconds=tuple(seconds),
        processor_seconds=tuple(of_processor),
        real=tuple(around),
    )


def _processor_seconds() -> float:
    """Return the processor time in seconds of this process and its ended child processes."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def sentences(found: Found) -> str:
    """Return the results as text."""
    lines = [
        f"{where_and_when()}; the core {form()}; {found.jobs} processes, "
        f"{len(found.seconds)} runs, medians",
        f"{found.entries:,} entries, {found.settings} settings, {found.distinct} distinct: "
        f"{median(found.seconds):.1f} s, of the processor {median(found.processor_seconds):.1f} s, "
        f"{median(found.rates):,.0f} settings x entries a second; "
        f"{found.replayed:,} entries replayed, {found.skipped:,} skipped",
    ]
    if found.real:
        lines.append(
            f"the real allocator: {median(found.real):,.0f} entries a second; the sweep "
            f"{median(found.shares):.2f} of it ({min(found.shares):.2f} to {max(found.shares):.2f})"
        )
    return "\n".join(lines) + "\n"


def document(found: Found) -> str:
    """Return the results as JSON."""
    counts = ("jobs", "entries", "settings", "distinct", "replayed", "skipped")
    about = {**facts(found.release), "runs": len(found.seconds)}
    figures = {
        "seconds": found.seconds,
        "processor_seconds": found.processor_seconds,
        "rate": found.rates,
        "real": found.real,
        "rate_of_real": found.shares,
    }
    spreads = {name: spread(runs) for name, runs in figures.items() if runs}
    return (
        json.dumps({**about, **{n: getattr(found, n) for n in counts}, **spreads}, indent=2) + "\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("file")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--memory", default="48GiB")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    add_output(parser)
    options = parser.parse_args()
    found = measure(options.file, options.memory, options.jobs, options.runs)
    show((document if options.json else sentences)(found), options.output)


if __name__ == "__main__":
    main()
