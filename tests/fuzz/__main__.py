"""Runs millions of inputs through every reader; a fault is printed and kept as a file.

    python -m tests.fuzz --inputs 1000000 --seed 0 --jobs 2

Inputs are valid ones with random changes; `tests.fuzz.guided` searches for inputs that reach new
lines.  Memory and time per input are limited (`limits.py`).  The exit code is 1 if there was a
fault.
"""

from __future__ import annotations

import argparse
import random
import resource
import signal
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tests.fuzz.limits import MEMORY, SECONDS
from tests.fuzz.mutate import mutated
from tests.fuzz.seeds import seeds
from tests.fuzz.targets import TARGETS

_BATCH = 2_000
_SHARES = {"recording": 0.7, "header": 0.1, "message": 0.1, "option_string": 0.1}
"""Share of the inputs for each reader."""


class Done(NamedTuple):
    """Result of a batch: inputs, accepted inputs, longest time, and faults with their inputs."""

    inputs: int
    taken: int
    slowest: float
    faults: list[tuple[str, bytes]]


def run_batch(target: str, seed: int) -> Done:
    """Run `_BATCH` inputs of one reader."""
    source, sound = random.Random(seed), seeds(target)
    taken, slowest, faults = 0, 0.0, []
    for _ in range(_BATCH):
        data = mutated(source, sound)
        begin = time.process_time()
        signal.alarm(SECONDS)
        try:
            taken += TARGETS[target](data)
        except BaseException as error:
            faults.append((f"{target}: {type(error).__name__}: {error}", data))
        signal.alarm(0)
        slowest = max(slowest, time.process_time() - begin)
    return Done(_BATCH, taken, slowest, faults)


def _limit() -> None:
    """Limit this worker to `MEMORY` additional bytes and to `SECONDS` per input."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    signal.signal(signal.SIGALRM, _too_long)


def _too_long(*_: object) -> None:
    raise TimeoutError(f"more than {SECONDS} s")


def jobs_of(inputs: int, seed: int, only: str | None) -> list[tuple[str, int]]:
    """Return the batches, by reader, each with a different seed."""
    found: list[tuple[str, int]] = []
    for target, share in _SHARES.items():
        count = round(inputs * (1.0 if only else share)) if only in (None, target) else 0
        found += [(target, seed + len(found) + i) for i in range(-(-count // _BATCH))]
    return found


def run(inputs: int, seed: int, jobs: int, only: str | None) -> int:
    """Run all batches, print the results and return the number of faults."""
    tally = {target: Done(0, 0, 0.0, []) for target in TARGETS}
    begin = time.perf_counter()
    with ProcessPoolExecutor(jobs, initializer=_limit) as pool:
        todo = jobs_of(inputs, seed, only)
        batches = pool.map(run_batch, *zip(*todo, strict=True))
        for (target, _), done in zip(todo, batches, strict=True):
            so_far = tally[target]
            slowest = max(so_far.slowest, done.slowest)
            faults = so_far.faults + done.faults
            tally[target] = Done(
                so_far.inputs + done.inputs, so_far.taken + done.taken, slowest, faults
            )
    print("| reader | inputs | taken | longest, s | faults |\n|---|---|---|---|---|")
    for target, done in tally.items():
        print(
            f"| {target} | {done.inputs:,} | {done.taken:,} | {done.slowest:.2f} "
            f"| {len(done.faults)} |"
        )
    print(f"{time.perf_counter() - begin:.0f} s")
    faults = [fault for done in tally.values() for fault in done.faults]
    for number, (what, data) in enumerate(faults[:20]):
        path = Path(f"fault-{number}.bin")
        path.write_bytes(data)
        print(f"{what}: {path}", file=sys.stderr)
    return len(faults)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--target", choices=TARGETS)
    arguments = parser.parse_args()
    faults = run(arguments.inputs, arguments.seed, arguments.jobs, arguments.target)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
