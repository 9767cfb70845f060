"""Replay recordings of random programs and compare the replays with the programs.

    python -m benchmarks.guesses [--programs N] [--seed S] [--torch R] [--family NAME]
                                 [--real] [--what-if]

A recording contains only requests and frees; calls of empty_cache, streams, memory fractions and
deleted pools leave no entries.  The programs make such calls at random, in families.  Their
recordings are replayed with the device's size known and unknown.

--real first runs each program through the allocator of the published release, which must agree with
the model.  --what-if also replays each recording under other settings, and compares the peak of
reserved memory with that of the program: equal, or within the range that the replay gives.
"""

from __future__ import annotations

import argparse
import pickle
import random
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from allocsim import CachingAllocator, OutOfMemoryError, load, replay
from allocsim.core import NEWEST
from allocsim.errors import UndefinedBehaviorError
from allocsim.recording import Recording
from allocsim.units import GIB, KIB, MIB
from allocsim.verify import RealAllocator, Script
from allocsim.verify.comparison import first_difference
from allocsim.verify.player import play

_IN_RANGE = "in its range"

Op = list[object]
Make = Callable[[random.Random], Script]


class _Program:
    """Builder of one random program."""

    def __init__(self, rng: random.Random, streams: int = 1) -> None:
        self.rng = rng
        self.ops: list[Op] = []
        self.live: list[int] = []
        self.count = 0
        self.streams = streams
        self.pools = 0
        self.ended: list[tuple[int, list[int]]] = []
        self.favourites = [self._size() for _ in range(rng.choice((2, 4, 8)))]

    def _size(self) -> int:
        rng = self.rng
        kind = rng.random()
        if kind < 0.25:
            return rng.randint(1, 4096)
        if kind < 0.45:
            return rng.randint(4 * KIB, MIB)
        if kind < 0.8:
            return rng.choice((1, 2, 3, 5, 8, 10, 16, 20, 21, 30, 32, 40, 48, 64)) * MIB
        return rng.randint(MIB, 64 * MIB)

    def allocate(self) -> None:
        """Request memory, mostly of a size that was requested before."""
        size = self.rng.choice(self.favourites) if self.rng.random() < 0.7 else self._size()
        self.count += 1
        self.live.append(self.count)
        stream = self.rng.choice((0, self.rng.randrange(self.streams)))
        self.ops.append(["a", self.count, size, stream])

    def free(self) -> None:
        """Free the newest, the oldest or a random block."""
        if self.live:
            at = self.rng.choice((0, -1, self.rng.randrange(len(self.live))))
            self.ops.append(["f", self.live.pop(at)])

    def record(self) -> None:
        """Call record_stream() of a block for another stream."""
        if self.live:
            self.ops.append(["r", self.rng.choice(self.live), self.rng.randrange(self.streams)])

    def finish(self) -> None:
        """Let the device finish the work of one stream, or of all."""
        one = self.rng.random() < 0.7
        self.ops.append(["s", self.rng.randrange(self.streams)] if one else ["S"])

    def empty(self) -> None:
        """Call torch.cuda.empty_cache()."""
        self.ops.append(["e"])

    def pool(self) -> None:
        """Allocate into a MemPool for a while."""
        number, held = self.pools + 1, []
        self.pools = number
        self.ops.append(["P", "b", number])
        for _ in range(self.rng.choice((1, 3, 10))):
            self.allocate()
            if self.rng.random() < 0.6:
                held.append(self.live.pop())
            elif self.rng.random() < 0.5:
                self.ops.append(["f", self.live.pop()])
        self.ops.append(["P", "e", number])
        self.ended.append((number, held))

    def let_go(self) -> None:
        """Free the remaining blocks of a pool, and delete it."""
        if self.ended:
            number, held = self.ended.pop(self.rng.randrange(len(self.ended)))
            self.ops += [["f", name] for name in held]
            self.ops.append(["P", "l", number])

    def run(self, steps: int, **weights: float) -> list[Op]:
        """Run `steps` random methods and return the ops of the program.

        weights: relative frequency of each method, by name.
        """
        chosen = self.rng.choices(list(weights), list(weights.values()), k=steps)
        for name in chosen:
            getattr(self, name)()
        return self.ops


def _steps(rng: random.Random) -> int:
    return rng.choice((20, 60, 150, 400, 1000))


def _emptied(rng: random.Random) -> Script:
    program = _Program(rng)
    ops = program.run(_steps(rng), allocate=0.52, free=0.46, empty=0.02)
    return Script(ops, 80 * GIB)


def _full(rng: random.Random) -> Script:
    memory = rng.choice((256, 384, 512, 768, 1024)) * MIB
    ops = _Program(rng).run(_steps(rng), allocate=0.52, free=0.48, empty=rng.choice((0, 0, 0.01)))
    return Script(ops, memory)


def _streams(rng: random.Random) -> Script:
    memory = rng.choice((64 * MIB, 256 * MIB, GIB, 80 * GIB))
    program = _Program(rng, streams=rng.choice((2, 3)))
    ops = program.run(_steps(rng), allocate=0.45, free=0.4, record=0.1, finish=0.04, empty=0.01)
    return Script(ops, memory)


def _collected(rng: random.Random) -> Script:
    program = _Program(rng)
    program.ops.append(["m", rng.choice((0.5, 0.8, 0.9))])
    ops = program.run(_steps(rng), allocate=0.52, free=0.47, empty=0.01)
    conf = f"garbage_collection_threshold:{rng.choice((0.5, 0.6, 0.8))}"
    return Script(ops, rng.choice((512 * MIB, GIB)), conf)


def _expandable(rng: random.Random) -> Script:
    program = _Program(rng)
    ops = program.run(_steps(rng), allocate=0.52, free=0.46, empty=0.02)
    memory = rng.choice((512 * MIB, GIB, 80 * GIB))
    return Script(ops, memory, "expandable_segments:True")


def _split(rng: random.Random) -> Script:
    program = _Program(rng)
    ops = program.run(_steps(rng), allocate=0.52, free=0.47, empty=0.01)
    conf = f"max_split_size_mb:{rng.choice((21, 32, 40, 64))}"
    return Script(ops, rng.choice((384 * MIB, 768 * MIB, 80 * GIB)), conf)


def _pools(rng: random.Random) -> Script:
    program = _Program(rng)
    ops = program.run(_steps(rng), allocate=0.5, free=0.44, pool=0.02, let_go=0.03, empty=0.01)
    return Script(ops, rng.choice((GIB, 80 * GIB)))


WHAT_IF = (
    "",
    "max_split_size_mb:64",
    "expandable_segments:True",
    "roundup_power2_divisions:4",
    "large_segment_size_mb:64",
)

FAMILIES: dict[str, Make] = {
    "emptied": _emptied,
    "full": _full,
    "streams": _streams,
    "collected": _collected,
    "expandable": _expandable,
    "split": _split,
    "pools": _pools,
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of the replay of one program's recording.

    known: True if the device's size was given; None for a what-if.
    problem: difference from the program; "" if there is none.
    """

    family: str
    seed: int
    known: bool | None
    problem: str


def programs(family: str, seed: int, torch: str, *, is_real: bool) -> list[Outcome]:
    """Record and replay one program of `family`, with the device's size unknown and known."""
    script = FAMILIES[family](random.Random(f"{family} {seed}"))
    if is_real and (found := _difference(script, torch)) is not None:
        return [Outcome(family, seed, False, found)]
    with TemporaryDirectory() as place:
        path = Path(place) / "program.pickle"
        write(script, torch, path)
        return [
            Outcome(
                family, seed, known, _problem(path, torch, script.device_memory if known else None)
            )
            for known in (False, True)
        ]


def _difference(script: Script, torch: str) -> str | None:
    """Return the first difference between the model and the real allocator; None if equal."""
    found = first_difference(play(script, torch), RealAllocator(torch).run(script))
    return None if found is None else f"{script.conf or 'defaults'}: the model differs: {found}"


def what_ifs(family: str, seed: int, torch: str, *, is_real: bool) -> list[Outcome]:
    """Compare the peaks of what-if replays with those of the program under the same settings."""
    script = FAMILIES[family](random.Random(f"{family} {seed}"))
    with TemporaryDirectory() as place:
        path = Path(place) / "program.pickle"
        write(script, torch, path)
        recording = load(path)
        others = [replace(script, conf=conf) for conf in WHAT_IF if conf != script.conf]
        found = [(_peak_problem(recording, other, torch), other) for other in others]
        return [
            Outcome(family, seed, True, (_difference(other, torch) if is_real else None) or problem)
            for problem, other in found
            if problem is not None
        ]


def _peak_problem(recording: Recording, script: Script, torch: str) -> str | None:
    """Return the difference of the peaks; "" if in the range, None if the program fails."""
    try:
        stats = ran(script, torch).memory_stats()
    except UndefinedBehaviorError:
        return None
    run = replay(
        recording, script.conf, device_memory=script.device_memory, torch_version=torch
    ).devices[0]
    if stats["num_ooms"] or run.ooms:
        return None
    truth, (low, high) = stats["reserved_bytes.all.peak"], run.peak_range
    if truth == run.peak_reserved_bytes:
        return ""
    figures = f"{script.conf or 'defaults'}: {run.peak_reserved_bytes:,}, in truth {truth:,}"
    return (
        f"{_IN_RANGE}: {figures}"
        if low <= truth <= high
        else f"{figures}, not in {low:,} to {high:,}"
    )


def write(script: Script, torch: str, path: Path) -> None:
    """Write the snapshot of `script` under release `torch`."""
    path.write_bytes(pickle.dumps(ran(script, torch).snapshot(), protocol=4))


def ran(script: Script, torch: str) -> CachingAllocator:
    """Return the allocator of release `torch` after it has run `script`."""
    allocator = CachingAllocator(
        script.device_memory, script.conf, torch, base_address=1 << 44, record_history=True
    )
    live: dict[object, int] = {}
    for op in script.ops:
        _act(allocator, live, op)
    return allocator


def _act(allocator: CachingAllocator, live: dict[object, int], op: Sequence[object]) -> None:
    match op:
        case ["a", name, int(size), int(stream)]:
            try:
                address = allocator.malloc(size, stream * 4096)
            except OutOfMemoryError:
                return
            if address is not None:
                live[name] = address
        case ["f", name] if name in live:
            allocator.free(live.pop(name))
        case ["r", name, int(stream)] if name in live:
            allocator.record_stream(live[name], stream * 4096)
        case ["s", int(stream)]:
            allocator.synchronize(stream * 4096)
        case ["S"]:
            allocator.synchronize()
        case ["e"]:
            allocator.empty_cache()
        case ["P", "b", int(pool)]:
            allocator.begin_allocate_to_pool(pool)
        case ["P", "e", int(pool)]:
            allocator.end_allocate_to_pool(pool)
        case ["P", "l", int(pool)]:
            allocator.delete_mempool(pool)
        case ["m", float(fraction)]:
            allocator.set_per_process_memory_fraction(fraction)


def _problem(path: Path, torch: str, memory: int | None) -> str:
    try:
        run = replay(load(path), device_memory=memory, torch_version=torch)
    except Exception:
        return traceback.format_exc(limit=-1).strip().splitlines()[-1][:90]
    device = run.devices[0]
    if device.fidelity is None:
        return "the device does not count as the recorded one"
    if device.fidelity.is_exact:
        return ""
    return (
        f"{device.fidelity.addresses_matched} of {device.fidelity.allocations} addresses, "
        f"{device.fidelity.segments_matched} of {device.fidelity.segments} segments"
    )


def main() -> None:
    """Print the number of exact replays of each family, and the seeds of the others."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--programs", type=int, default=50, help="programs of each family")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first program")
    parser.add_argument("--torch", default=NEWEST)
    parser.add_argument("--family", choices=list(FAMILIES), action="append")
    parser.add_argument("--real", action="store_true")
    parser.add_argument("--what-if", action="store_true")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    for family in options.family or FAMILIES:
        one = partial(programs, family, torch=options.torch, is_real=options.real)
        seeds = range(options.seed, options.seed + options.programs)
        with ProcessPoolExecutor(options.jobs) as pool:
            found = [each for found in pool.map(one, seeds) for each in found]
        if options.what_if:
            with ProcessPoolExecutor(options.jobs) as pool:
                peaks = pool.map(
                    partial(what_ifs, family, torch=options.torch, is_real=options.real), seeds
                )
                found += [replace(each, known=None) for some in peaks for each in some]
        for line in _lines(family, found):
            print(line, flush=True)


def _lines(family: str, found: list[Outcome]) -> Iterator[str]:
    for known, name in ((False, "unknown"), (True, "known"), (None, "what-if")):
        here = [each for each in found if each.known is known]
        failed = [each for each in here if each.problem]
        if here:
            yield f"{family:<12} {name:<8} {len(here) - len(failed)} of {len(here)}"
            in_range = sum(each.problem.startswith(_IN_RANGE) for each in here)
            if in_range:
                yield f"    {in_range} of the others in the range that the replay gives"
        yield from (f"    seed {each.seed}: {each.problem}" for each in failed)


if __name__ == "__main__":
    main()
