"""Measure the time of replay(), compared with that of the real allocator.

    python -m benchmarks.replays                   three scripts of 300,000 ops, five runs each
    python -m benchmarks.replays -o FILE           the table as Markdown, with machine and date

The recording is loaded before the timed call.  The first call checks it and computes its start
state and plan, which later calls reuse.  "As recorded" compares every entry and the final segments.
"What-if" uses another setting, without the proof (`DeviceRun.parting`).  "proof/drive" is the time
of a drive with a comparison divided by that of one without, by rows and by entries (`keeps_rows` of
`Drive`).  A run is the median of three passes in a new process, and the ratio is the median of the
ratios of neighbouring runs, as in `benchmarks.speed`.
"""

from __future__ import annotations

import argparse
import gc
import platform
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from multiprocessing import get_context
from statistics import median

import numpy as np

from allocsim import replay
from allocsim.core import NEWEST, CachingAllocator
from allocsim.recording import Action, Trace
from allocsim.replaying import prepare
from allocsim.replaying.setup import drive_as_recorded
from allocsim.results import Recording
from allocsim.simulation import Observer
from allocsim.verify import Script
from benchmarks.output import add_output, form, show
from benchmarks.scripts import SCRIPTS, Op
from benchmarks.speed import DEVICE_MEMORY, PASSES, real_allocator

WHAT_IF = "max_split_size_mb:64"

Times = dict[str, float]


def recording_of(ops: Sequence[Op]) -> Recording:
    """Return a recording of the ops, made by the model of the newest release."""
    allocator = CachingAllocator(DEVICE_MEMORY, record_history=True)
    held: dict[int, int | None] = {}
    for op in ops:
        if op[0] == "a":
            held[op[1]] = allocator.malloc(op[2], op[3])
        else:
            allocator.free(held.pop(op[1]))
    history = allocator.take_history()
    codes = {action.text: int(action) for action in Action}
    none = np.full(len(history), -1, dtype=np.int32)
    trace = Trace(
        device=0,
        action=np.array([codes[entry.action] for entry in history], dtype=np.uint8),
        addr=np.array([entry.address for entry in history], dtype=np.uint64),
        size=np.array([entry.size for entry in history], dtype=np.int64),
        stream=np.array([entry.stream for entry in history], dtype=np.uint64),
        frames=none,
        pool_id=none.copy(),
        segments=tuple(allocator.segments()),
    )
    return Recording("script", "snapshot", (trace,))


class _Keeps(Observer):
    """Observer that keeps the history, so that the proof compares entries."""

    keeps_history = True


def run_times(name: str, n_ops: int) -> Times:
    """Return the seconds of each kind of call of replay(), measured in this process."""
    recording = recording_of(SCRIPTS[name](n_ops))
    (prepared,) = prepare(recording)
    assert replay(recording).devices[0].parting is None

    def prove(*observers: Observer) -> None:
        drive, _, _ = drive_as_recorded(prepared, prepared.recorded, None, observers=observers)
        drive.run()

    ways: dict[str, Callable[[], object]] = {
        "first as recorded": lambda: replay(_as_loaded(recording)),
        "first what-if": lambda: replay(_as_loaded(recording), WHAT_IF),
        "as recorded": lambda: replay(recording),
        "what-if": lambda: replay(recording, WHAT_IF),
        "drive": lambda: prepared.drive(prepared.recorded, None),
        "proof": prove,
        "proof by entries": lambda: prove(_Keeps()),
    }
    gc.collect()
    gc.freeze()
    return {way: median(_seconds(call) for _ in range(PASSES)) for way, call in ways.items()}


def _as_loaded(recording: Recording) -> Recording:
    """Return a copy of the recording without the results that earlier calls cached."""
    return replace(recording, devices=tuple(replace(trace) for trace in recording.devices))


def _seconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def measure(name: str, n_ops: int, runs: int) -> str:
    """Return a row of the table, from `runs` alternating runs."""
    real = real_allocator(NEWEST)
    ops = [list(op[: 4 if op[0] == "a" else 2]) for op in SCRIPTS[name](n_ops)]
    script = Script(ops, device_memory=DEVICE_MEMORY)
    ours: list[Times] = []
    theirs: list[float] = []
    for _ in range(runs):
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            ours.append(pool.submit(run_times, name, n_ops).result())
        if real is not None:
            theirs.append(median(real.time(script, repeats=PASSES)))
    cells = [name]
    for way in ("first as recorded", "first what-if", "as recorded", "what-if"):
        seconds = [times[way] for times in ours]
        cells.append(f"{median(seconds):.2f} ({min(seconds):.2f} to {max(seconds):.2f})")
        ratios = [real / mine for real, mine in zip(theirs, seconds, strict=False)]
        cells.append(_range(ratios))
    cells += [
        _range([times[way] / times["drive"] for times in ours])
        for way in ("proof", "proof by entries")
    ]
    return f"| {' | '.join(cells)} |"


def _range(ratios: Sequence[float]) -> str:
    if not ratios:
        return "-"
    return f"{median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replays", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--ops", type=int, default=300_000)
    parser.add_argument("--runs", type=int, default=5)
    add_output(parser)
    arguments = parser.parse_args()
    lines = [
        f"{platform.machine()}, CPython {platform.python_version()}, PyTorch {NEWEST} modelled, "
        f"{datetime.now(UTC):%Y-%m-%d}; the core {form()}; {arguments.ops:,} ops, "
        f"{arguments.runs} runs, median (lowest to highest)",
        "",
        "| script | first call, as recorded, s | of the real rate | first call, what-if, s "
        "| of the real rate | as recorded, s | of the real rate | what-if, s | of the real rate "
        "| proof/drive | proof by entries/drive |",
        f"|{'---|' * 11}",
        *(measure(name, arguments.ops, arguments.runs) for name in SCRIPTS),
    ]
    text = "\n".join(lines) + "\n"
    show(text, arguments.output)


if __name__ == "__main__":
    main()
