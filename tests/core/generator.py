"""Random op scripts that stay near what a release accepts, and now and then beyond it.

Rule: a script is a function of its seed and release alone.  Sizes crowd at the boundaries of
the rules and repeat, because ties and exact fits are where allocators part.
"""

from __future__ import annotations

import random
from typing import Any

from allocsim.core import Release
from allocsim.units import GIB, KIB, MIB

from .script import Script

__all__ = ["make_script"]

_EDGES = (512, KIB, MIB, 2 * MIB, 10 * MIB, 20 * MIB, 21 * MIB, 40 * MIB, 64 * MIB)
_DEVICES = (
    *(MIB, 5 * MIB, 37 * MIB, 64 * MIB, 100 * MIB + 12345, 128 * MIB, 200 * MIB - 1),
    *(256 * MIB, 300 * MIB, 512 * MIB, GIB, 3 * GIB + 777, 16 * GIB),
)


def make_script(seed: int, release: Release, *, with_pools: bool = True) -> Script:
    """The script of `seed` for `release`."""
    rng = random.Random(f"{seed} {release.version}")
    memory = rng.choice(_DEVICES)
    maker = _Maker(rng, release, memory, with_pools=with_pools)
    conf = _conf(rng, release) if rng.random() < 0.75 else ""
    for _ in range(rng.choice((15, 40, 100, 250))):
        maker.step()
    return Script(maker.ops, memory, conf, rng.choice(("bump", "firstfit")))


def _conf(rng: random.Random, release: Release) -> str:
    """A valid option string of a few options."""
    parts: dict[str, object] = {}
    large = 20
    if "large_segment_size_mb" in release.options and rng.random() < 0.2:
        large = parts["large_segment_size_mb"] = rng.choice((11, 13, 20, 32, 64))
    makers: dict[str, object] = {
        "max_split_size_mb": lambda: large + rng.choice((1, 2, 5, 30, 100)),
        "max_non_split_rounding_mb": lambda: large + rng.choice((1, 2, 20)),
        "garbage_collection_threshold": lambda: rng.choice((0.1, 0.5, 0.6, 0.8, 0.95)),
        "expandable_segments": lambda: rng.choice(("True", "True", "False")),
        "roundup_power2_divisions": lambda: _divisions(rng, release),
        "per_process_memory_fraction": lambda: rng.choice((0.3, 0.5, 0.77, 0.9, 1.0)),
        "throw_on_cudamalloc_oom": lambda: rng.choice(("True", "False")),
        "expandable_segments_reserve": lambda: rng.choice((0.05, 0.3, 0.7, "1G", "0.1G", 2)),
    }
    for key, make in makers.items():
        if key in release.options and rng.random() < 0.3:
            parts[key] = make()  # type: ignore[operator]
    items = list(parts.items())
    rng.shuffle(items)
    return ",".join(f"{key}:{value}" for key, value in items)


def _divisions(rng: random.Random, release: Release) -> str:
    if rng.random() < 0.5:
        return str(rng.choice((1, 2, 4, 8, 16)))
    keys = sorted(rng.sample((1, 2, 4, 8, 16, 32, 64, 128), rng.randint(1, 4)))
    values = (0, 1, 2, 4, 8) if release.list_divisions_may_be_zero else (1, 2, 4, 8)
    pairs = [f"{key}:{rng.choice(values)}" for key in keys]
    if rng.random() < 0.5:
        pairs.append(f">:{rng.choice(values)}")
    return f"[{','.join(pairs)}]"


class _Maker:
    """One script in the making; knows what is live and which scopes are open."""

    def __init__(
        self, rng: random.Random, release: Release, memory: int, *, with_pools: bool
    ) -> None:
        self.rng = rng
        self.release = release
        self.memory = memory
        self.ops: list[list[Any]] = []
        self.live: list[int] = []
        self.n_ids = 0
        self.streams = rng.choice(([0], [0], [0, 1], [0, 1, 2], [0, 3, 7, 9, 21, 40]))
        self.favourites = [self._any_size() for _ in range(rng.choice((1, 3, 8)))]
        self.scopes: list[int] = []
        self.uses: dict[int, int] = {}
        pools = with_pools and not release.scope_by_stream and rng.random() < 0.5
        self.weights = {
            self.allocate: 10.0,
            self.free: rng.choice((3.0, 6.0, 9.0, 10.0)),
            self.record: rng.choice((0.0, 1.0, 3.0)) if len(self.streams) > 1 else 0.0,
            self.finish: rng.choice((0.0, 0.5, 1.5)),
            self.empty_cache: rng.choice((0.0, 0.1, 0.5)),
            self.limit: rng.choice((0.0, 0.0, 0.2)),
            self.scope: rng.choice((0.5, 2.0)) if pools else 0.0,
            self.settings: rng.choice((0.0, 0.0, 0.3)),
            self.reset: rng.choice((0.0, 0.1)),
        }

    def step(self) -> None:
        """Append one op."""
        makers, weights = zip(*self.weights.items(), strict=True)
        self.rng.choices(makers, weights)[0]()

    def _any_size(self) -> int:
        rng = self.rng
        kind = rng.random()
        if kind < 0.35:
            edge = rng.choice(_EDGES) + rng.choice((-512, -1, 0, 0, 1, 512))
            return max(1, edge)
        if kind < 0.55:
            return rng.randint(1, 4000)
        if kind < 0.6:
            return rng.choice((0, self.memory, self.memory + 1, (1 << 60) - 1, 1 << 60))
        return int(2 ** rng.uniform(0, max(20, min(self.memory.bit_length() - 1, 30))))

    def allocate(self) -> None:
        size = self.rng.choice(self.favourites) if self.rng.random() < 0.6 else self._any_size()
        self.n_ids += 1
        self.live.append(self.n_ids)
        self.ops.append(["a", self.n_ids, size, self.rng.choice(self.streams)])

    def free(self) -> None:
        if self.live:
            at = self.rng.choice((0, -1, self.rng.randrange(len(self.live))))
            self.ops.append(["f", self.live.pop(at)])

    def record(self) -> None:
        if self.live:
            self.ops.append(["r", self.rng.choice(self.live), self.rng.choice(self.streams)])

    def finish(self) -> None:
        one = self.rng.random() < 0.7
        self.ops.append(["s", self.rng.choice(self.streams)] if one else ["S"])

    def empty_cache(self) -> None:
        asserts = self.scopes and self.release.empty_cache_in_scope.name == "ASSERTS"
        if not asserts or self.rng.random() < 0.02:
            self.ops.append(["e"])

    def limit(self) -> None:
        self.ops.append(["m", self.rng.choice((1.0, 0.0, 0.5, 0.9, self.rng.random()))])

    def settings(self) -> None:
        self.ops.append(["c", _conf(self.rng, self.release)])

    def reset(self) -> None:
        self.ops.append([self.rng.choice("kK")])

    def scope(self) -> None:
        """Mostly what a program may do with pools; seldom what asserts."""
        rng = self.rng
        if rng.random() < 0.01:
            self.ops.append(["P", rng.choice("ber"), rng.randint(1, 4)])
            return
        closed = [n for n in range(1, 8) if n not in self.scopes and self._may_begin(n)]
        releasable = [n for n, uses in self.uses.items() if uses > 0 and n not in self.scopes]
        kind = rng.random()
        if kind < 0.4 and closed:
            pool = rng.choice(closed[:3])
            self.scopes.append(pool)
            self.uses[pool] = self.uses.get(pool, 0) + 1
            self.ops.append(["P", "b", pool, *self._marks()])
        elif kind < 0.75 and self.scopes:
            pool = self.scopes.pop(rng.randrange(len(self.scopes)))
            self.ops.append(["P", "e", pool])
        elif releasable:
            pool = rng.choice(releasable)
            self.uses[pool] -= 1
            self.ops.append(["P", "r", pool])

    def _may_begin(self, pool: int) -> bool:
        """A pool that was released to the end asserts unless it is forgotten."""
        return self.uses.get(pool) != 0 or self.rng.random() < 0.05

    def _marks(self) -> list[int]:
        no_split = self.release.no_split and self.rng.random() < 0.2
        overflow = self.release.overflow.name != "NEVER" and self.rng.random() < 0.3
        return [int(no_split), int(overflow)] if no_split or overflow else []
