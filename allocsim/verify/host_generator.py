"""Make random op scripts that allocate pinned host memory; most are valid for a PyTorch release."""

from __future__ import annotations

import random
from collections.abc import Callable

from allocsim.core import Release
from allocsim.units import GIB, KIB, MIB
from allocsim.verify.generator import MANY, RandomStreams
from allocsim.verify.script import Op, Script

_EDGES = (1, 512, 4 * KIB, 64 * KIB, MIB, 2 * MIB, 4 * MIB, 16 * MIB, 64 * MIB)
_IMPOSSIBLE = (1 << 47, 1 << 50)
_LENGTHS = (15, 100, 250, 1000, 4000, 4000)
_SHORT = 150
"""Maximum number of ops of a script with a background thread, for which every op waits."""
_FLAGS = ("True", "False")
_VALUES: dict[str, tuple[object, ...]] = {
    "pinned_num_register_threads": (1, 2),
    "pinned_reserve_segment_size_mb": (1, 2, 16),
    "pinned_free_catch_all": _FLAGS,
    "pinned_max_round_threshold_mb": (0, 1, 2, 16),
    "pinned_max_cached_size_mb": (0, 1, 3, 16),
}
"""Dictionary from an option of pinned memory to the values to choose from.

Options that use threads are not in it; a script sets them in rare cases.
"""


def make_host_script(seed: int, release: Release) -> Script:
    rng = random.Random(f"host {seed} {release.version}")
    maker = _Maker(rng, release)
    conf = maker.conf() if rng.random() < 0.7 else ""
    length = rng.choice(_LENGTHS)
    for _ in range(min(length, _SHORT) if maker.has_thread else length):
        maker.step()
    return Script(maker.ops, GIB, conf, handles=maker.handles, is_host=True)


class _Maker:
    def __init__(self, rng: random.Random, release: Release) -> None:
        self.rng = rng
        self.release = release
        self.ops: list[Op] = []
        self.live: list[int] = []
        self.n_ids = 0
        self.most_live = rng.choice((3, 10, 40))
        streams = RandomStreams.make(rng)
        self.streams, self.handles = streams.numbers, streams.handles
        self.has_thread = rng.random() < 0.06
        # PyTorch touches the memory of registered blocks, so a request for more than the machine
        # has would crash.
        self.registers = rng.random() < 0.05
        self.n_pools = 0
        self.graphs: list[int] = []  # pool of each graph that is not deleted
        self.captured: int | None = None
        self.capturing = 0  # stream of the open capture
        self.uses: dict[int, set[int]] = {}
        self.born_in_capture: set[int] = set()
        captures = len(self.streams) > 1 and rng.random() < 0.4
        self.favourites = [self._any_size() for _ in range(rng.choice((1, 3, 8)))]
        many = len(self.streams) >= MANY
        self.weights: dict[Callable[[], None], float] = {
            self.allocate: 10.0,
            self.free: rng.choice((6.0, 9.0, 10.0)),
            self.record: rng.choice((0.0, 3.0, 12.0 if many else 6.0)),
            self.crowd: rng.choice((0.5, 2.0)) if many else 0.0,
            self.finish: rng.choice((0.2, 1.0, 3.0)),
            self.empty_cache: rng.choice((0.0, 0.1, 0.5)),
            self.settings: rng.choice((0.0, 0.0, 0.3)),
            self.reset: rng.choice((0.0, 0.1, 0.5)),
            self.read: 0.5,
            self.capture: rng.choice((0.1, 0.5, 1.0)) if captures else 0.0,
        }

    def step(self) -> None:
        makers, weights = zip(*self.weights.items(), strict=True)
        self.rng.choices(makers, weights)[0]()

    def conf(self) -> str:
        rng, options = self.rng, self.release.options
        known = [option for option in _VALUES if option in options]
        chosen = rng.sample(known, rng.randint(0, len(known)))
        parts = [f"{option}:{rng.choice(_VALUES[option])}" for option in chosen]
        if self.registers:
            parts.append(f"pinned_use_cuda_host_register:{rng.choice(_FLAGS)}")
        if self.has_thread:
            parts.append(f"pinned_use_background_threads:{rng.random() < 0.8}")
        rng.shuffle(parts)
        return ",".join(parts)

    def _any_size(self) -> int:
        rng = self.rng
        kind = rng.random()
        if kind < 0.02:
            return 0
        if kind < 0.03 and not self.registers:
            return rng.choice(_IMPOSSIBLE)
        edge = rng.choice(_EDGES[:5] if self.registers else _EDGES)
        if kind < 0.5:
            return max(1, edge + rng.choice((-1, 0, 0, 1)))
        return rng.randint(1, edge)

    def allocate(self) -> None:
        if len(self.live) >= self.most_live:
            self.free()
        size = self.rng.choice(self.favourites) if self.rng.random() < 0.7 else self._any_size()
        self.n_ids += 1
        self.live.append(self.n_ids)
        if self.captured is not None and self.release.host_private_pools:
            self.born_in_capture.add(self.n_ids)
        self.ops.append(["a", self.n_ids, size])

    def free(self) -> None:
        if self.live:
            self._free_at(self.rng.choice((0, -1, self.rng.randrange(len(self.live)))))

    def _free_at(self, at: int) -> None:
        if not self._is_undefined(self.live[at]) or self.rng.random() < 0.001:
            self.ops.append(["f", self.live.pop(at)])

    def _is_undefined(self, name: int) -> bool:
        # A free in a capture records an event, which no call may query.
        is_used = self.captured is not None and self.capturing in self.uses.get(name, ())
        return is_used and name not in self.born_in_capture

    def record(self) -> None:
        if self.live:
            name = self.rng.choice((self.live[-1], self.rng.choice(self.live)))
            self._record_on(name, self.rng.choice(self.streams))

    def _record_on(self, name: int, stream: int) -> None:
        self.uses.setdefault(name, set()).add(stream)
        self.ops.append(["r", name, stream])

    def crowd(self) -> None:
        # Several streams use the block, so that their order matters.
        self.allocate()
        for stream in self.rng.sample(self.streams, self.rng.choice((2, 3, 8))):
            self._record_on(self.live[-1], stream)
        self._free_at(-1)
        if self.rng.random() < 0.5:
            self.ops.append(["s", self.rng.choice(self.streams)])

    def finish(self) -> None:
        one = self.rng.random() < 0.8
        self.ops.append(["s", self.rng.choice(self.streams)] if one else ["S"])

    def empty_cache(self) -> None:
        self.ops.append(["e"])

    def settings(self) -> None:
        self.ops.append(["c", self.conf()])

    def reset(self) -> None:
        self.ops.append([self.rng.choice("kK")])

    def capture(self) -> None:
        rng = self.rng
        if self.captured is not None:
            self.ops.append(["P", "e", self.captured])
            self.graphs.append(self.captured)
            self.captured = None
        elif self.graphs and rng.random() < 0.4:
            pool = self.graphs.pop(rng.randrange(len(self.graphs)))
            self.ops.append(["P", "r", pool])
        else:
            # A pool whose last graph is deleted may not be captured to again.
            self.n_pools += 1
            self.captured = rng.choice([self.n_pools, *self.graphs])
            self.capturing = rng.choice(self.streams[1:])
            self.ops.append(["P", "b", self.captured, self.capturing])

    def read(self) -> None:
        self.ops.append(["q"])
