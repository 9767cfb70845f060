"""Measure operations per second of the model, and of the real allocator if it is available.

    python -m benchmarks.speed                     three scripts of a million ops, five runs each
    python -m benchmarks.speed --profile           profile one run
    python -m benchmarks.speed --tricks            the engine without each optimization
    python -m benchmarks.speed -o FILE             the table as Markdown, with machine and date
    python -m benchmarks.speed --json              the same as JSON: medians, lowest and highest

An op is one allocation or one free.  Every run computes every statistic.  "model" calls
ReplayAllocator in a loop; "engine" replays the same ops as a recording, with its timeline; "real"
is PyTorch's allocator from the published wheel, with a driver that only keeps books (install it
with `python -m allocsim.phantom fetch`).  A run is the median of three passes in a new process.
Runs alternate, and the ratio is the median of the ratios of neighbouring runs, so that changes in
the speed of the machine affect both.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import pstats
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from multiprocessing import get_context
from statistics import median

import numpy as np
from numpy.typing import NDArray

from allocsim.core import NEWEST, ReplayAllocator, find_release, parse_conf
from allocsim.core.journal import Folder, fold_records
from allocsim.errors import PhantomError
from allocsim.inference import plan_of
from allocsim.recording import Action, Trace
from allocsim.simulation import RecordedDevice, Setting
from allocsim.simulation.drive import Drive
from allocsim.simulation.plan import Steps
from allocsim.simulation.timeline import fold
from allocsim.verify import RealAllocator, Script
from benchmarks.output import add_output, facts, form, show, spread, where_and_when
from benchmarks.scripts import SCRIPTS, Op

DEVICE_MEMORY = 1 << 40
"""1 TiB, which no script fills, so that the time is that of the allocator, not the driver."""


PASSES = 3
"""Passes of a script in one process; a run is the median of their times."""


@dataclass(frozen=True, slots=True)
class Row:
    """Ops per second of one script, by run.

    model, engine: direct calls of the model, and replays of the ops as a recording.
    real: the real allocator; empty if its library is not available.
    """

    name: str
    model: list[float]
    engine: list[float]
    real: list[float]

    def shares(self, rates: list[float]) -> list[float]:
        """Return `rates` divided by those of the real allocator; empty if it is not available."""
        return (
            [mine / real for mine, real in zip(rates, self.real, strict=True)] if self.real else []
        )


def time_model(ops: Sequence[Op], release: str) -> float:
    """Return the seconds of one pass of direct calls of the model."""
    allocator = ReplayAllocator(DEVICE_MEMORY, torch_version=release)
    malloc, free = allocator.malloc, allocator.free
    held: dict[int, int | None] = {}
    begin = time.perf_counter()
    for op in ops:
        if op[0] == "a":
            held[op[1]] = malloc(op[2], op[3])
        else:
            free(held.pop(op[1]))
    allocator.memory_stats()
    return time.perf_counter() - begin


class UnmarkedSteps(Steps):
    """Steps of the replay engine without the optimization for brief requests."""

    @cached_property
    def kind_or_brief(self) -> NDArray[np.uint8]:
        return self.kind


def time_engine(
    trace: Trace,
    release: str,
    *,
    fast_path: bool = True,
    folder: Folder = fold,
    marks_brief: bool = True,
) -> float:
    """Return the seconds of one pass of the replay engine, including the plan."""
    begin = time.perf_counter()
    allocator = ReplayAllocator(DEVICE_MEMORY, torch_version=release, fast_path=fast_path)
    made_for = find_release(release)
    config = parse_conf("", made_for)
    plan = plan_of(
        RecordedDevice("", trace, made_for, "", Setting(""), config, False, (), provenance=None)
    )
    if not marks_brief:
        steps = plan.steps
        columns = (steps.kind, steps.entry, steps.addr, steps.size, steps.stream)
        plan = replace(plan, steps=UnmarkedSteps(*columns))
    drive = Drive(allocator, plan, len(trace), dictates=False, folder=folder)
    drive.run()
    drive.timeline.build(drive.plan.steps.entry)
    allocator.memory_stats()
    return time.perf_counter() - begin


def as_trace(ops: Sequence[Op]) -> Trace:
    """Return the ops as a trace; ids of allocations serve as addresses."""
    rows: list[tuple[int, int, int]] = []
    sizes: dict[int, int] = {}
    for op in ops:
        if op[0] == "a":
            sizes[op[1]] = op[2]
            rows.append((Action.ALLOC, op[1], op[2]))
        else:
            size = sizes.pop(op[1])
            rows += [(Action.FREE_REQUESTED, op[1], size), (Action.FREE_COMPLETED, op[1], size)]
    action, addr, size_column = (np.array(column) for column in zip(*rows, strict=True))
    none = np.full(len(rows), -1, dtype=np.int32)
    return Trace(
        device=0,
        action=action.astype(np.uint8),
        addr=addr.astype(np.uint64),
        size=size_column.astype(np.int64),
        stream=np.zeros(len(rows), dtype=np.uint64),
        frames=none,
        pool_id=none.copy(),
    )


def real_allocator(release: str) -> RealAllocator | None:
    """Return the real allocator if its library is in the cache, or None."""
    try:
        return RealAllocator(release)
    except PhantomError as error:
        print(f"no ratio: {error}", file=sys.stderr)
        return None


def run_model(name: str, n_ops: int, release: str) -> float:
    """Return the ops per second of direct calls, in this process."""
    ops = SCRIPTS[name](n_ops)
    _freeze()
    return len(ops) / median(time_model(ops, release) for _ in range(PASSES))


def run_engine(name: str, n_ops: int, release: str) -> float:
    """Return the ops per second of the replay engine, in this process."""
    trace = as_trace(SCRIPTS[name](n_ops))
    _freeze()
    return n_ops / median(time_engine(trace, release) for _ in range(PASSES))


def _freeze() -> None:
    """Exclude the script of the benchmark from the cycle collector."""
    gc.collect()
    gc.freeze()


def alone(run: Callable[[str, int, str], float], name: str, n_ops: int, release: str) -> float:
    """Return the result of `run`, called in a new process."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(run, name, n_ops, release).result()


def measure(name: str, n_ops: int, runs: int, release: str) -> Row:
    """Measure a script `runs` times, alternating model, engine and real allocator."""
    real = real_allocator(release)
    ops = [list(op[: 4 if op[0] == "a" else 2]) for op in SCRIPTS[name](n_ops)]
    script = Script(ops, device_memory=DEVICE_MEMORY)
    row = Row(name, [], [], [])
    for _ in range(runs):
        row.model.append(alone(run_model, name, n_ops, release))
        row.engine.append(alone(run_engine, name, n_ops, release))
        if real is not None:
            row.real.append(n_ops / median(real.time(script, repeats=PASSES)))
    return row


def table(rows: Sequence[Row], n_ops: int, release: str) -> str:
    """Return the rows as Markdown, with machine and date."""
    lines = [
        f"{where_and_when()}; PyTorch {release} modelled, the core {form()}; {n_ops:,} ops, "
        f"{len(rows[0].model)} runs, median (lowest to highest)",
        "",
        "| script | model, ops/s | engine, ops/s | real, ops/s | model/real | engine/real |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [row.name, *(_rates(rates) for rates in (row.model, row.engine, row.real))]
        for rates in (row.model, row.engine):
            shares = row.shares(rates)
            cells.append(f"{median(shares):.3f}" if shares else "-")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def document(rows: Sequence[Row], n_ops: int, release: str) -> str:
    """Return the rows as JSON, with ratios to the real allocator."""
    scripts = {}
    for row in rows:
        figures = {
            "model": row.model,
            "engine": row.engine,
            "real": row.real,
            "model_of_real": row.shares(row.model),
            "engine_of_real": row.shares(row.engine),
        }
        scripts[row.name] = {name: spread(runs) for name, runs in figures.items() if runs}
    about = {**facts(release), "ops": n_ops, "runs": len(rows[0].model)}
    return json.dumps({**about, "scripts": scripts}, indent=2) + "\n"


def _rates(rates: list[float]) -> str:
    if not rates:
        return "-"
    return f"{median(rates):,.0f} ({min(rates):,.0f} to {max(rates):,.0f})"


def optimizations(n_ops: int, release: str) -> str:
    """Return a table of the engine's ops per second, with and without each optimization."""
    lines = [
        "| script | engine | without rows of plain steps | statistics in plain Python "
        "| without brief requests |",
        "|---|---|---|---|---|",
    ]
    for name, make in SCRIPTS.items():
        trace = as_trace(make(n_ops))
        _freeze()
        ways: list[Callable[[], float]] = [
            partial(time_engine, trace, release),
            partial(time_engine, trace, release, fast_path=False),
            partial(time_engine, trace, release, folder=fold_records),
            partial(time_engine, trace, release, marks_brief=False),
        ]
        rounds = [[way() for way in ways] for _ in range(PASSES)]
        rates = [f"{n_ops / median(times):,.0f}" for times in zip(*rounds, strict=True)]
        lines.append(f"| {name} | {' | '.join(rates)} |")
    return "\n".join(lines) + "\n"


def profile(n_ops: int, release: str) -> None:
    """Print the functions that take most of each script's time."""
    for name, make in SCRIPTS.items():
        ops = make(n_ops)
        profiler = cProfile.Profile()
        profiler.enable()
        time_model(ops, release)
        profiler.disable()
        print(f"## {name}")
        pstats.Stats(profiler).strip_dirs().sort_stats("tottime").print_stats(10)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--ops", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--torch", default=NEWEST, help="release to model")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--tricks", action="store_true")
    parser.add_argument("--json", action="store_true")
    add_output(parser)
    arguments = parser.parse_args()
    if arguments.profile:
        profile(arguments.ops, arguments.torch)
        return
    if arguments.tricks:
        print(optimizations(arguments.ops, arguments.torch))
        return
    rows = [measure(name, arguments.ops, arguments.runs, arguments.torch) for name in SCRIPTS]
    form_of = document if arguments.json else table
    show(form_of(rows, arguments.ops, arguments.torch), arguments.output)


if __name__ == "__main__":
    main()
