"""Random scripts over every option, release and device size, core beside the naive model.

    python -m tests.stress --ops 10000000 --seed 0 --jobs 2

Every other script runs in rows, the way of a replay.  Prints what was run, by operation, option
and release.  A divergence is made as short as it can be and printed as a test to paste; the exit
code is then 1.
"""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import Future, ProcessPoolExecutor, as_completed

from allocsim.core import RELEASES
from allocsim.questions.crosscheck import Script
from allocsim.questions.crosscheck.generator import make_script
from allocsim.questions.crosscheck.tally import Tally
from tests.stress.duel import duel, shortest

BATCH = 200
"""Scripts a job: some seconds of work."""

Found = tuple[Script, str, bool, str]
"""(script, release, whether in rows, what differs)."""

Batch = tuple[Tally, list[Found]]


def run_batch(first_seed: int) -> Batch:
    """`BATCH` seeds, each on the next release: what ran, and what differed."""
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
    """The divergence as a test that fails."""
    ops = "\n".join(f"        {list(op)!r}," for op in script.ops)
    return (
        "from allocsim.questions.crosscheck import Script\nfrom tests.stress.duel import duel\n\n\n"
        f"def test_a_divergence_in_{release.replace('.', '_')}() -> None:\n"
        f"    ops = [\n{ops}\n    ]\n"
        f"    script = Script(ops, {script.device_memory}, {script.conf!r}, "
        f"{script.address_policy!r})\n"
        f"    assert duel(script, {release!r}, in_rows={in_rows}) is None\n"
    )


def report(tally: Tally, seconds: float) -> str:
    """The counts, by kind."""
    lines = []
    for kind in ("operation", "option", "release", "device"):
        lines.append(f"ops by {kind}")
        lines += [f"  {name:32} {n:>12,}" for name, n in tally.rows(kind)]
    lines.append(f"{tally.ops:,} operations in {seconds:,.0f} s")
    return "\n".join(lines)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.stress")
    parser.add_argument("--ops", type=int, default=10_000_000, help="operations to run at least")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    arguments = parser.parse_args()
    begin = time.monotonic()
    tally = Tally()
    seed, done = arguments.seed, 0
    found: list[Found] = []
    with ProcessPoolExecutor(arguments.jobs) as executor:
        waiting: set[Future[Batch]] = set()
        while (done < arguments.ops and not found) or waiting:
            while done < arguments.ops and not found and len(waiting) < 2 * arguments.jobs:
                waiting.add(executor.submit(run_batch, seed))
                seed += BATCH
            future = next(as_completed(waiting))
            waiting.remove(future)
            counts, differing = future.result()
            tally += counts
            found += differing
            done = tally.ops
            if sys.stderr.isatty():
                print(f"\r{done:,} operations", end="", file=sys.stderr)
    print(report(tally, time.monotonic() - begin))
    print(f"seeds {arguments.seed} to {seed - 1}")
    for script, release, in_rows, difference in found[:3]:
        short = shortest(script, release, in_rows=in_rows)
        test = as_test(short, release, in_rows=in_rows)
        print(f"\nDIVERGENCE in {release}: {difference}\n\n{test}")
    print("no divergence" if not found else f"{len(found)} scripts diverge")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
