"""Measure the time of the first replay() of a recording, compared with that of the real allocator.

    python -m benchmarks.replays                   recordings of 300,000 ops, five runs each
    python -m benchmarks.replays -o FILE           the table as Markdown, with machine and date

The recordings have no marks and no provenance, as PyTorch writes them, so that a what-if also
replays other programs that would have left the same recording.  "Second half" is a recording that
starts mid-run.  Each call gets a recording just loaded, which
it checks, and from which it infers plan and start state.  "With proof and range" also reads
`DeviceRun.parting` and `DeviceRun.left_open`, as every command does.  The first setting has no
effect on a recording without a memory limit; the last one has another course from the first request
on.

Times are CPU seconds, which other work on the machine changes least.  A run is the median of three
passes in a new process, and a ratio the median of the ratios of neighbouring runs.  The real
allocator runs the whole script, and the ratio for half of it is that of the rates.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from resource import RUSAGE_CHILDREN, getrusage
from statistics import median

import numpy as np

from allocsim import replay
from allocsim.core import NEWEST, CachingAllocator, TraceEntry
from allocsim.recording import Action, Trace
from allocsim.results import Recording
from allocsim.verify import RealAllocator, Script
from benchmarks.output import add_output, form, show, where_and_when
from benchmarks.scripts import SCRIPTS, Op, growing
from benchmarks.speed import DEVICE_MEMORY, PASSES, real_allocator

SETTINGS = (
    "garbage_collection_threshold:0.99",
    "max_split_size_mb:64",
    "expandable_segments:True",
)
RECORDINGS: dict[str, tuple[Callable[[int], list[Op]], bool]] = {
    **{name: (make, False) for name, make in SCRIPTS.items()},
    "random, growing": (growing, False),
    "second half of training loop": (SCRIPTS["training loop"], True),
    "second half of 40,000 live blocks": (SCRIPTS["40,000 live blocks"], True),
}
"""Script of each recording, and whether the recording starts in the middle of it."""

Times = dict[str, float]


def recording_of(ops: Sequence[Op], *, is_cut: bool = False) -> Recording:
    """Return a recording of the ops, made by the model of the newest release.

    is_cut: record the second half of the ops only.
    """
    allocator = CachingAllocator(DEVICE_MEMORY, record_history=True)
    held: dict[int, int | None] = {}
    for number, op in enumerate(ops):
        if is_cut and number == len(ops) // 2:
            allocator.take_history()
        if op[0] == "a":
            held[op[1]] = allocator.malloc(op[2], op[3])
        else:
            allocator.free(held.pop(op[1]))
    trace = replace(_trace(allocator.take_history()), segments=tuple(allocator.segments()))
    return Recording("script", "snapshot", (trace,))


def _trace(history: Sequence[TraceEntry]) -> Trace:
    codes = {action.text: int(action) for action in Action}
    none = np.full(len(history), -1, dtype=np.int32)
    return Trace(
        device=0,
        action=np.array([codes[entry.action] for entry in history], dtype=np.uint8),
        addr=np.array([entry.address for entry in history], dtype=np.uint64),
        size=np.array([entry.size for entry in history], dtype=np.int64),
        stream=np.array([entry.stream for entry in history], dtype=np.uint64),
        frames=none,
        pool_id=none.copy(),
    )


def run_times(name: str, n_ops: int) -> Times:
    """Return the seconds of each kind of call of replay(), measured in this process."""
    make, is_cut = RECORDINGS[name]
    recording = recording_of(make(n_ops), is_cut=is_cut)
    assert replay(recording).devices[0].parting is None

    def answer(conf: str | None, *, is_read: bool = True) -> None:
        (run,) = replay(_as_loaded(recording), conf).devices
        if is_read:
            assert run.parting is None
            run.left_open  # noqa: B018  (computed by the first use)

    ways: dict[str, Callable[[], object]] = {"as recorded": partial(answer, None)}
    for conf in SETTINGS:
        ways[conf] = partial(answer, conf, is_read=False)
        ways[f"{conf}, with proof and range"] = partial(answer, conf)
    gc.collect()
    gc.freeze()
    return {way: median(_seconds(call) for _ in range(PASSES)) for way, call in ways.items()}


def _as_loaded(recording: Recording) -> Recording:
    """Return a copy of the recording without the results that earlier calls cached."""
    return replace(recording, devices=tuple(replace(trace) for trace in recording.devices))


def _seconds(call: Callable[[], object]) -> float:
    begin = time.process_time()
    call()
    return time.process_time() - begin


def _real_seconds(real: RealAllocator, script: Script) -> float:
    """Return the CPU seconds of one pass: those of four passes less those of one, a third of it."""

    def of_child(repeats: int) -> float:
        begin = getrusage(RUSAGE_CHILDREN).ru_utime
        real.time(script, repeats=repeats)
        return getrusage(RUSAGE_CHILDREN).ru_utime - begin

    return (of_child(1 + PASSES) - of_child(1)) / PASSES


def measure(name: str, n_ops: int, runs: int) -> list[str]:
    """Return the rows of a recording, from `runs` alternating runs."""
    real = real_allocator(NEWEST)
    make, is_cut = RECORDINGS[name]
    ops = [list(op[: 4 if op[0] == "a" else 2]) for op in make(n_ops)]
    script = Script(ops, device_memory=DEVICE_MEMORY)
    share = 0.5 if is_cut else 1.0
    ours: list[Times] = []
    theirs: list[float] = []
    for _ in range(runs):
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            ours.append(pool.submit(run_times, name, n_ops).result())
        if real is not None:
            theirs.append(share * _real_seconds(real, script))
    rows = [[f"{name}, as recorded", "", "", *_cells("as recorded", ours, theirs)]]
    for conf in SETTINGS:
        cells = [f"{name}, {conf}", *_cells(conf, ours, theirs)]
        rows.append([*cells, *_cells(f"{conf}, with proof and range", ours, theirs)])
    return [f"| {' | '.join(row)} |" for row in rows]


def _cells(way: str, ours: Sequence[Times], theirs: Sequence[float]) -> tuple[str, str]:
    """Return the seconds of a way, and its share of the real rate."""
    seconds = [times[way] for times in ours]
    shares = [real / mine for real, mine in zip(theirs, seconds, strict=False)]
    return _range(seconds, 2), _range(shares, 3)


def _range(values: Sequence[float], digits: int) -> str:
    if not values:
        return "-"
    middle, least, most = (
        f"{each:.{digits}f}" for each in (median(values), min(values), max(values))
    )
    return f"{middle} ({least} to {most})"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replays", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--ops", type=int, default=300_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", default="", help="measure recordings with this text in the name")
    add_output(parser)
    arguments = parser.parse_args()
    names = [name for name in RECORDINGS if arguments.only in name]
    lines = [
        f"{where_and_when()}; PyTorch {NEWEST} modelled, the core {form()}; "
        f"{arguments.ops:,} ops, {arguments.runs} runs, median (lowest to highest)",
        "",
        "| recording, setting | first call, s | of the real rate | with proof and range, s "
        "| of the real rate |",
        f"|{'---|' * 5}",
        *(row for name in names for row in measure(name, arguments.ops, arguments.runs)),
    ]
    show("\n".join(lines) + "\n", arguments.output)


if __name__ == "__main__":
    main()
