"""Measure a real GPU, and compare allocsim with the measurements.

    python -m benchmarks.on_gpu OUT                    every part, on the card of this machine
    python -m benchmarks.on_gpu OUT --parts driver kernels
    python -m benchmarks.on_gpu OUT --phantom H200     a rehearsal without a card
    python -m benchmarks.on_gpu --compare OUT          print the tables; needs no PyTorch
    python -m benchmarks.on_gpu --compare OUT --against PHANTOM

OUT gets the layout of `traces/h200`.  Each part runs in separate processes with time limits.
Existing outputs are kept, so a second call continues the first.  Programs run one after the other,
because processes that share a card slow each other's driver calls; --jobs cases, tasks and
edits run at once, as far as the card's memory allows.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from threading import Condition
from typing import Any

from allocsim.errors import AllocsimError
from allocsim.phantom import find_gpu
from benchmarks.on_gpu.jobs import PARTS, Job, jobs
from benchmarks.on_gpu.machine import Machine
from benchmarks.real_gpu.comparison import comparison_lines
from benchmarks.real_gpu.predictions import predictions_of, read_predictions

_GIB = 78.0
"""Memory of the card that jobs share, in GiB."""
_PARALLEL = ("cases", "tasks", "edits")
"""Parts whose jobs may run at the same time, because their durations are not used."""


class _Card:
    """Memory of the card that running jobs share.

    free: GiB that no running job needs.
    """

    def __init__(self, gib: float) -> None:
        self.free = self.gib = gib
        self._changed = Condition()

    @contextlib.contextmanager
    def share(self, gib: float) -> Iterator[None]:
        """Wait until `gib` are free, at most the whole card, and hold them within the block."""
        need = min(gib, self.gib)
        with self._changed:
            self._changed.wait_for(lambda: self.free >= need)
            self.free -= need
        try:
            yield
        finally:
            with self._changed:
                self.free += need
                self._changed.notify_all()


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a job.

    status: "done", "kept" (the output existed), "skipped" or "failed".
    """

    job: Job
    status: str
    seconds: float = 0.0
    reason: str = ""

    def __str__(self) -> str:
        text = f"{self.job.part:11} {self.job.name:28} {self.status:8} {self.seconds:6.1f} s"
        return f"{text}  {self.reason}".rstrip()


def outcome_of(job: Job, machine: Machine, deadline: float) -> Outcome:
    """Run a job unless its output is there, a package is missing, or no time is left."""
    if job.is_done:
        return Outcome(job, "kept")
    missing = [package for package in job.needs if not _has(machine, package)]
    if missing:
        return Outcome(job, "skipped", reason=f"{machine.python} has no {missing[0]}")
    begin = time.monotonic()
    limit = min(job.limit, deadline - begin)
    if limit < 1:
        return Outcome(job, "skipped", reason="no time left (--minutes); call again to continue")
    try:
        job.make(limit)
    except (AllocsimError, OSError, ValueError) as error:
        return Outcome(job, "failed", time.monotonic() - begin, str(error))
    return Outcome(job, "done", time.monotonic() - begin)


@cache
def _has(machine: Machine, package: str) -> bool:
    return machine.has(package)


def run(
    found: list[Job], machine: Machine, minutes: float, n_jobs: int, parallel: Collection[str]
) -> Iterator[Outcome]:
    """Run the jobs, part by part, and yield the outcome of each.

    minutes: time after which no job is started.
    n_jobs: number of jobs that run at the same time, in the parts `parallel`.
    """
    deadline = time.monotonic() + 60 * minutes
    card = _Card(_GIB)

    def result(job: Job) -> Outcome:
        with card.share(job.gib):
            return outcome_of(job, machine, deadline)

    for part, group in groupby(found, key=lambda job: job.part):
        n_threads = n_jobs if part in parallel else 1
        with ThreadPoolExecutor(n_threads) as pool:
            yield from pool.map(result, group)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.on_gpu")
    add = parser.add_argument
    add("out", nargs="?", type=Path, metavar="OUT", help="folder to write to")
    add("--compare", type=Path, metavar="OUT", help="print the tables of a folder")
    add("--against", type=Path, metavar="PHANTOM", help="folder of a rehearsal to compare with")
    add("--parts", nargs="+", choices=PARTS, default=PARTS, help="parts to run (default: all)")
    add("--only", default="", metavar="TEXT", help="programs and cases whose name contains TEXT")
    add("--python", default=sys.executable, help="interpreter with PyTorch (default: this one)")
    add("--phantom", metavar="CARD", help="rehearse over a phantom of this card")
    add("--ops", type=int, default=10_000, help="operations of the cross-check (default: 10000)")
    add("--minutes", type=float, default=9.5, help="limit of the whole run (default: 9.5)")
    add("--jobs", type=int, default=4, help="cases at a time (default: 4)")
    add("--untimed", action="store_true", help="run programs at the same time, too")
    given = parser.parse_args()
    if given.compare is not None:
        print("\n".join(comparison_lines(given.compare, _predicted(given.compare, given.against))))
        return 0
    if given.out is None:
        parser.error("expected a folder to write to, or --compare OUT")
    phantom = None if given.phantom is None else find_gpu(given.phantom)
    machine = Machine(given.python, phantom)
    out = given.out.resolve()
    wanted = {*given.parts} | ({"properties"} if "programs" in given.parts else set())
    found = [
        job for job in jobs(machine, out, ops=given.ops, only=given.only) if job.part in wanted
    ]
    outcomes = []
    parallel = {*_PARALLEL} | ({"programs"} if given.untimed else set())
    for outcome in run(found, machine, given.minutes, given.jobs, parallel):
        outcomes.append(outcome)
        print(outcome, flush=True)
    with contextlib.suppress(OSError):  # the files of failed jobs stay
        (out / "work").rmdir()
    print(_summary(outcomes))
    print(f"Compare: python -m benchmarks.on_gpu --compare {given.out}")
    return int(any(each.status == "failed" for each in outcomes))


def _predicted(card: Path, phantom: Path | None) -> dict[str, Any]:
    """Return the requests on the phantom GPU, to compare with those on the real GPU."""
    return read_predictions() if phantom is None else predictions_of(card, phantom)


def _summary(outcomes: list[Outcome]) -> str:
    lines = []
    for part in PARTS:
        of_part = [each for each in outcomes if each.job.part == part]
        if not of_part:
            continue
        counts = ", ".join(
            f"{n} {status}"
            for status in ("done", "kept", "skipped", "failed")
            if (n := sum(each.status == status for each in of_part))
        )
        lines.append(f"{part}: {counts}")
    return "\n".join(["", *lines])


if __name__ == "__main__":
    raise SystemExit(main())
