"""Random scripts over every option, release and device size, core against naive model.

    python -m tests.stress --ops 10000000 --seed 0 --jobs 2

Every second script uses the loop of a replay.  Prints the number of runs by operation, option and
release.  A divergence is shortened and printed as a test to paste; the exit code is then 1.

    python -m tests.stress --what-ifs 200000

compares replays instead: a random program is recorded, and a replay of the recording under other
settings and devices must equal the program run there by the naive model.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from typing import TypeVar

from allocsim.core import RELEASES
from allocsim.verify import Script
from allocsim.verify.crosscheck import Tally
from allocsim.verify.generator import make_script
from tests.stress.duel import duel, shortest
from tests.stress.what_ifs import differences

BATCH = 200
"""Scripts in a job; a job takes some seconds."""

Found = tuple[Script, str, bool, str]
"""(script, release, True if it used the loop of a replay, difference)."""

Batch = tuple[Tally, list[Found]]


def run_batch(first_seed: int) -> Batch:
    """Run `BATCH` seeds, each on the next release; return counts and differences."""
    tally = Tally()
    found = []
    releases = list(RELEASES.values())
    for seed in range(first_seed, first_seed + BATCH):
        release = releases[seed % len(releases)]
        script = make_script(seed, release, is_reproducible=False)
        in_rows = seed // len(releases) % 2 == 1
        difference = duel(script, release.version, in_rows=in_rows)
        if difference is not None:
            found.append((script, release.version, in_rows, difference))
        tally.add(script, release.version, (), "differs" if difference else "equal")
    return tally, found


def as_test(script: Script, release: str, *, in_rows: bool) -> str:
    """Return the divergence as a failing test."""
    ops = "\n".join(f"        {list(op)!r}," for op in script.ops)
    return (
        "from allocsim.verify import Script\nfrom tests.stress.duel import duel\n\n\n"
        f"def test_a_divergence_in_{release.replace('.', '_')}() -> None:\n"
        f"    ops = [\n{ops}\n    ]\n"
        f"    script = Script(ops, {script.device_memory}, {script.conf!r}, "
        f"{script.address_policy!r}, handles={dict(script.handles)!r})\n"
        f"    assert duel(script, {release!r}, in_rows={in_rows}) is None\n"
    )


def report(tally: Tally, seconds: float) -> str:
    """Print the counts by kind."""
    lines = []
    for kind in ("operation", "option", "release", "device"):
        lines.append(f"ops by {kind}")
        lines += [f"  {name:32} {n:>12,}" for name, n in tally.rows(kind)]
    lines.append(f"{tally.ops:,} operations in {seconds:,.0f} s")
    return "\n".join(lines)


def run_what_ifs(first_seed: int) -> tuple[Counter[str], list[str]]:
    """Compare the what-if replays of `BATCH` programs; return their number and the differences."""
    counts: Counter[str] = Counter()
    found = []
    releases = list(RELEASES.values())
    for seed in range(first_seed, first_seed + BATCH):
        release = releases[seed % len(releases)]
        for program, asked, difference in differences(seed, release):
            counts[release.version] += 1
            if difference is not None:
                under = f"{program.conf or 'defaults'} on {program.device_memory:,} bytes"
                found.append(
                    f"seed {seed}, {release.version}: {len(program.ops)} ops recorded under "
                    f"{under}, asked for {asked}: {difference}"
                )
    return counts, found


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.stress")
    parser.add_argument("--ops", type=int, default=10_000_000, help="operations to run at least")
    parser.add_argument(
        "--what-ifs", type=int, metavar="N", help="compare N replays instead, or a few more"
    )
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    arguments = parser.parse_args()
    if arguments.what_ifs is not None:
        return compare_what_ifs(arguments.what_ifs, arguments.seed, arguments.jobs)
    return compare_scripts(arguments.ops, arguments.seed, arguments.jobs)


Batched = TypeVar("Batched")


def batches(
    run: Callable[[int], Batched], seed: int, jobs: int, wants_more: Callable[[], bool]
) -> Iterator[Batched]:
    """Yield the results of `run` for one batch after another, while more are wanted."""
    with ProcessPoolExecutor(jobs) as executor:
        waiting: set[Future[Batched]] = set()
        while wants_more() or waiting:
            while wants_more() and len(waiting) < 2 * jobs:
                waiting.add(executor.submit(run, seed))
                seed += BATCH
            future = next(as_completed(waiting))
            waiting.remove(future)
            yield future.result()


def compare_what_ifs(least: int, seed: int, jobs: int) -> int:
    """Compare at least `least` replays with their programs; return the exit code."""
    begin = time.monotonic()
    counts: Counter[str] = Counter()
    found: list[str] = []

    def wants_more() -> bool:
        return counts.total() < least and not found

    for count, differing in batches(run_what_ifs, seed, jobs, wants_more):
        counts += count
        found += differing
        _say(f"{counts.total():,} what-ifs")
    print("what-ifs by release")
    for version in RELEASES:
        print(f"  {version:32} {counts[version]:>12,}")
    print(f"{counts.total():,} what-ifs in {time.monotonic() - begin:,.0f} s, from seed {seed} on")
    for each in found[:10]:
        print(f"\nDIVERGENCE of {each}")
    print("no divergence" if not found else f"{len(found)} what-ifs diverge")
    return 1 if found else 0


def compare_scripts(least: int, seed: int, jobs: int) -> int:
    """Compare core and naive model over at least `least` operations; return the exit code."""
    begin = time.monotonic()
    tally = Tally()
    found: list[Found] = []

    def wants_more() -> bool:
        return tally.ops < least and not found

    for counts, differing in batches(run_batch, seed, jobs, wants_more):
        tally += counts
        found += differing
        _say(f"{tally.ops:,} operations")
    print(report(tally, time.monotonic() - begin))
    print(f"from seed {seed} on")
    for script, release, in_rows, difference in found[:3]:
        short = shortest(script, release, in_rows=in_rows)
        test = as_test(short, release, in_rows=in_rows)
        print(f"\nDIVERGENCE in {release}: {difference}\n\n{test}")
    print("no divergence" if not found else f"{len(found)} scripts diverge")
    return 1 if found else 0


def _say(progress: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{progress}", end="", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
