"""Make random op scripts; most are valid for a PyTorch release, and some exceed its limits.

Many sizes are equal, or at the boundaries of the allocator's rules, because implementations are
most likely to differ on ties and exact fits.

A reproducible script avoids two cases where real PyTorch gives different results each time.  Both
concern pool scopes, that is, code whose requests go to a private pool:

- In a scope, PyTorch up to 2.12 defers frees of blocks that other streams use.  From 2.9 to 2.12,
  several deferred frees complete in an unknown order, so a script defers one free at a time
  (semantics.md, section 12.3a).
- Up to 2.12, PyTorch stores the streams recorded in a scope under the address of a C++ object.  So
  a script calls record_stream only inside or only outside scopes (semantics.md, section 12.3b).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from allocsim.core import Release
from allocsim.units import GIB, KIB, MIB
from allocsim.verify.script import Op, Script

_LARGE_SEGMENT = 20
_SHARE = 0.3
"""Probability that a random conf contains an option; for large_segment_size_mb, half of it."""


class RandomSettings:
    """Random generator of the confs (values of PYTORCH_CUDA_ALLOC_CONF) that one script sets.

    has_pools: True if the script begins allocating to pools.  PyTorch up to 2.12 treats this as the
        capture of a CUDA graph, and with graph_capture_record_stream_reuse it reads this graph.
        The graph does not exist (semantics.md, section 5.5), so the confs then omit this option.
    """

    def __init__(self, rng: random.Random, release: Release, *, has_pools: bool) -> None:
        self._rng = rng
        self._release = release
        self._large = _LARGE_SEGMENT
        inert = dict(_INERT)
        if has_pools and release.scope_is_capture:
            del inert["graph_capture_record_stream_reuse"]
        self._inert = {key: values for key, values in inert.items() if key in release.options}

    def make(self) -> str:
        """Return the next random conf; its max_split_size_mb exceeds large_segment_size_mb."""
        rng = self._rng
        parts: dict[str, object] = {}
        if "large_segment_size_mb" in self._release.options and rng.random() < _SHARE / 2:
            self._large = rng.choice((11, 12, 13, 14, 20, 32, 64))
            parts["large_segment_size_mb"] = self._large
        for key, make in self._makers().items():
            if key in self._release.options and rng.random() < _SHARE:
                parts[key] = make()
        if parts.get("expandable_segments") == "True" and rng.random() < _SHARE:
            parts |= self._reserve()
        for key, values in self._inert.items():
            if rng.random() < _SHARE / 6:
                parts[key] = rng.choice(values)
        items = list(parts.items())
        rng.shuffle(items)
        return ",".join(f"{key}:{value}" for key, value in items)

    def _makers(self) -> dict[str, Callable[[], object]]:
        choice = self._rng.choice
        return {
            "max_split_size_mb": lambda: self._large + choice((1, 2, 5, 30, 100)),
            "max_non_split_rounding_mb": lambda: self._large + choice((1, 2, 20)),
            "garbage_collection_threshold": lambda: choice((0.1, 0.5, 0.6, 0.8, 0.95)),
            "expandable_segments": lambda: choice(("True", "True", "False")),
            "roundup_power2_divisions": self._divisions,
            "per_process_memory_fraction": lambda: choice((0.3, 0.5, 0.77, 0.9, 1.0)),
            "throw_on_cudamalloc_oom": lambda: choice(("True", "False")),
        }

    def _reserve(self) -> dict[str, object]:
        values = (0.05, 0.3, 0.7, 1, 2, "1G", "0.1G", "0.0625G", "0.0390625G")
        key = "expandable_segments_reserve"
        return {key: self._rng.choice(values)} if key in self._release.options else {}

    def _divisions(self) -> str:
        rng = self._rng
        if rng.random() < 0.5:
            return str(rng.choice((1, 2, 4, 8, 16)))
        keys = sorted(rng.sample((1, 2, 4, 8, 16, 32, 64, 128), rng.randint(1, 4)))
        values = (0, 1, 2, 4, 8) if self._release.list_divisions_may_be_zero else (1, 2, 4, 8)
        pairs = [f"{key}:{rng.choice(values)}" for key in keys]
        if rng.random() < 0.5:
            pairs.append(f">:{rng.choice(values)}")
        return f"[{','.join(pairs)}]"


_FLAGS = ("True", "False")
_INERT: dict[str, tuple[object, ...]] = {
    "backend": ("native",),
    "release_lock_on_cudamalloc": _FLAGS,
    "graph_capture_record_stream_reuse": _FLAGS,
    "expandable_segments_reserve_by_class": ("[a:0.5]", "[a:1G,b:0.25]"),
    "pinned_use_cuda_host_register": _FLAGS,
    "pinned_num_register_threads": (1, 2, 8),
    "pinned_use_background_threads": _FLAGS,
    "pinned_reserve_segment_size_mb": (16, 256),
    "pinned_free_catch_all": _FLAGS,
    "pinned_max_round_threshold_mb": (1, 64),
    "pinned_max_cached_size_mb": (1, 1024),
}
"""Dictionary from each option that must not affect device memory to values to choose from."""


_FEW = ([0], [0], [0, 1], [0, 1, 2], [0, 3, 7, 9, 21, 40])
MANY = 8
"""Least number of streams with which PyTorch's hash tables of streams can overflow."""
_COUNTS = (MANY, 12, 16)
_LARGEST_HANDLE = 1 << 47
_ALIGNMENT = 16
_GOLDEN = 11400714819323198485
_SLOTS = 16
_CROWDED_SLOTS = (2, 3, 3, 4, _SLOTS)
"""Choices for the number of hash slots, out of 16, into which all streams of a script fall."""


@dataclass(frozen=True, slots=True)
class RandomStreams:
    """Streams of a random script.

    numbers: small numbers that name the streams in the script; 0 is the default stream.
    handles: dictionary from a stream number to a `cudaStream_t` value; a stream without a key has
        the value number * 4096.
    """

    numbers: list[int]
    handles: dict[int, int] = field(default_factory=dict)

    @classmethod
    def make(cls, rng: random.Random) -> RandomStreams:
        if rng.random() < 0.6:
            return cls(rng.choice(_FEW))
        numbers = list(range(rng.choice(_COUNTS) + 1))
        first, width = rng.randrange(_SLOTS), rng.choice(_CROWDED_SLOTS)
        handles: dict[int, int] = {}
        while len(handles) < len(numbers) - 1:
            handle = rng.randrange(1, _LARGEST_HANDLE // _ALIGNMENT) * _ALIGNMENT
            if (_slot(handle) - first) % _SLOTS < width:
                handles[len(handles) + 1] = handle
        return cls(numbers, handles)


def _slot(handle: int) -> int:
    return (_GOLDEN * (1 << 56 | handle) % (1 << 64)) * _SLOTS >> 64


_EDGES = (512, KIB, MIB, 2 * MIB, 10 * MIB, 20 * MIB, 21 * MIB, 40 * MIB, 64 * MIB)
_DEVICES = (
    *(MIB, 5 * MIB, 37 * MIB, 64 * MIB, 100 * MIB + 12345, 128 * MIB, 200 * MIB - 1),
    *(256 * MIB, 300 * MIB, 512 * MIB, GIB, 3 * GIB + 777, 16 * GIB),
)
_ABSURD = (1 << 40, (1 << 60) - 512, (1 << 60) - 1, 1 << 60, (1 << 63) + 1)
_LARGEST = (1 << 64) - 1
"""Largest value of `size_t`, the allocator's type of sizes."""
_LENGTHS = (15, 40, 100, 250, 250, 1000)


def make_script(
    seed: int,
    release: Release,
    *,
    is_reproducible: bool = True,
    with_marks: bool = True,
    largest: int = _LARGEST,
    length_factor: int = 1,
) -> Script:
    """Return a random script of allocator calls for a PyTorch release.

    seed: equal seeds give equal scripts.
    is_reproducible: avoid the cases where real PyTorch gives different results each time.
    with_marks: also use these calls if the PyTorch release has them: pools with no_split or
        use_on_oom, empty_cache for a single pool, and deletion of a pool by its MemPool.
    largest: upper limit of a requested size, in bytes.
    length_factor: factor on the number of allocator calls, above 1 if each script starts slowly.
    """
    rng = random.Random(f"{seed} {release.version}")
    memory = rng.choice(_DEVICES)
    maker = _Maker(
        rng,
        release,
        memory,
        is_reproducible=is_reproducible,
        with_marks=with_marks,
        largest=largest,
    )
    conf = maker.options.make() if rng.random() < 0.75 else ""
    if "garbage_collection_threshold" in conf and rng.random() < 0.7:
        maker.limit()  # without a memory limit there is no garbage collection
    if len(maker.streams) >= MANY and rng.random() < 0.8:
        maker.crowd()  # a hash table overflows most easily while it has few buckets
    for _ in range(length_factor * rng.choice(_LENGTHS)):
        maker.step()
    maker.finale()
    policy = rng.choice(("bump", "firstfit"))
    return Script(maker.ops, memory, conf, policy, handles=maker.handles)


class _Maker:
    def __init__(
        self,
        rng: random.Random,
        release: Release,
        memory: int,
        *,
        is_reproducible: bool,
        with_marks: bool,
        largest: int,
    ) -> None:
        self.rng = rng
        self.release = release
        reserved = memory + memory // 8  # size of an expandable segment's reservation
        self.memory = memory
        absurd = (size for size in _ABSURD if size <= largest)
        self.beyond = (memory, memory + 1, reserved, reserved + 1, *absurd)
        self.with_marks = with_marks
        self.ops: list[Op] = []
        self.live: list[int] = []
        self.most_live = rng.choice((8, 40, 200))
        self.n_ids = 0
        streams = RandomStreams.make(rng)
        self.streams, self.handles = streams.numbers, streams.handles
        self.favourites = [self._any_size() for _ in range(rng.choice((1, 3, 8)))]
        self.scopes: list[int] = []
        self.uses: dict[int, int] = {}
        self.homes: dict[int, tuple[int, ...]] = {}  # pools that may hold each block, keyed by id
        self.forgotten: set[int] = set()  # pools that the allocator deleted; usable again
        pools = not release.scope_by_stream and rng.random() < 0.5
        self.options = RandomSettings(rng, release, has_pools=pools)
        self.recorded: set[int] = set()
        self.has_deferred = False
        self.defers_one = is_reproducible and release.unordered_deferred_frees
        remembers = is_reproducible and release.forgets_captured_streams
        self.records_in_scope = rng.choice((True, False)) if remembers else None
        self.weights: dict[Callable[[], None], float] = {
            self.allocate: 10.0,
            self.free: rng.choice((3.0, 6.0, 9.0, 10.0)),
            self.record: rng.choice((0.0, 1.0, 3.0)) if len(self.streams) > 1 else 0.0,
            self.crowd: rng.choice((0.1, 0.5)) if len(self.streams) >= MANY else 0.0,
            self.finish: rng.choice((0.0, 0.5, 1.5)),
            self.empty_cache: rng.choice((0.0, 0.1, 0.5, 1.5)),
            self.limit: rng.choice((0.0, 0.0, 0.2)),
            self.scope: rng.choice((0.5, 2.0, 5.0)) if pools else 0.0,
            self.give_up: rng.choice((0.0, 0.5, 2.0)) if pools and with_marks else 0.0,
            self.settings: rng.choice((0.0, 0.0, 0.3)),
            self.reset: rng.choice((0.0, 0.1, 0.5)),
        }

    def step(self) -> None:
        makers, weights = zip(*self.weights.items(), strict=True)
        self.rng.choices(makers, weights)[0]()

    def finale(self) -> None:
        # A last empty_cache or reset shows differences in free blocks or statistics.
        if self.rng.random() < 0.2:
            self.empty_cache()
        if self.rng.random() < 0.2:
            self.reset()

    def _any_size(self) -> int:
        rng = self.rng
        kind = rng.random()
        if kind < 0.35:
            edge = rng.choice(_EDGES) + rng.choice((-512, -1, 0, 0, 1, 512))
            return max(1, edge)
        if kind < 0.55:
            return rng.randint(1, 4000)
        if kind < 0.6:
            return rng.choice((0, *self.beyond))
        return int(2 ** rng.uniform(0, max(20, min(self.memory.bit_length() - 1, 30))))

    def allocate(self) -> None:
        if len(self.live) >= self.most_live:
            self.free()
        size = self.rng.choice(self.favourites) if self.rng.random() < 0.6 else self._any_size()
        self.n_ids += 1
        self.live.append(self.n_ids)
        self.homes[self.n_ids] = tuple(self.scopes)
        self.ops.append(["a", self.n_ids, size, self.rng.choice(self.streams)])
        if not self.scopes and 0 < size < 1 << 60:
            self.has_deferred = False  # a request completes the frees deferred by a closed scope

    def free(self) -> None:
        if not self.live:
            return
        self._free_at(self.rng.choice((0, -1, self.rng.randrange(len(self.live)))))

    def _free_at(self, at: int) -> None:
        if self.scopes and self.live[at] in self.recorded:
            if self.defers_one and self.has_deferred:
                return
            self.has_deferred = True
        self.ops.append(["f", self.live.pop(at)])

    def record(self) -> None:
        if self.live:
            self._record_on(self.rng.choice(self.live), self.rng.choice(self.streams))

    def _record_on(self, name: int, stream: int) -> None:
        if self.records_in_scope in (None, bool(self.scopes)):
            self.recorded.add(name)
            self.ops.append(["r", name, stream])

    def crowd(self) -> None:
        # Many streams use the blocks, so that hash tables of streams overflow.
        rng = self.rng
        for stream in rng.sample(self.streams, rng.randint(4, len(self.streams))):
            self.allocate()
            others = rng.sample(self.streams, rng.randint(1, 8)) if rng.random() < 0.2 else []
            for each in (stream, *others):
                self._record_on(self.live[-1], each)
            self._free_at(-1)
        if rng.random() < 0.7:
            self.ops.append(["S"])

    def finish(self) -> None:
        one = self.rng.random() < 0.7
        self.ops.append(["s", self.rng.choice(self.streams)] if one else ["S"])

    def empty_cache(self) -> None:
        asserts = self.scopes and self.release.empty_cache_in_scope.name == "ASSERTS"
        if not asserts or self.rng.random() < 0.02:
            self.ops.append(["e"])
            if not self.scopes:
                self.has_deferred = False
            self._forget(*self.uses)

    def limit(self) -> None:
        self.ops.append(["m", self.rng.choice((1.0, 0.0, 0.5, 0.9, self.rng.random()))])

    def give_up(self) -> None:
        rng, release = self.rng, self.release
        is_sure = not (self.scopes and release.scope_is_capture) or rng.random() < 0.02
        if not self.uses or not is_sure:
            return
        deletable = [n for n, uses in self.uses.items() if uses == 1 and n not in self.scopes]
        if release.mempools_hold_pools and deletable and rng.random() < 0.6:
            pool = rng.choice(deletable)
            self.uses[pool] -= 1
            self.ops.append(["P", "l", pool])
        elif release.empty_cache_of_pool:
            pool = rng.choice([*self.uses, 0])
            self.ops.append(["P", "v", pool])
        else:
            return
        self._forget(pool)

    def _forget(self, *pools: int) -> None:
        # The allocator deletes a pool without users and blocks.
        inhabited = {pool for name in self.live for pool in self.homes[name]}
        gone = {n for n in pools if self.uses.get(n) == 0 and n not in inhabited}
        self.forgotten |= gone - {*self.scopes}

    def settings(self) -> None:
        self.ops.append(["c", self.options.make()])

    def reset(self) -> None:
        self.ops.append([self.rng.choice("kK")])

    def scope(self) -> None:
        # In rare cases, add an op that fails an assertion of PyTorch.
        rng = self.rng
        if rng.random() < 0.002:
            self.ops.append(["P", rng.choice("ber"), rng.randint(1, 4)])
            return
        closed = [n for n in range(1, 8) if n not in self.scopes and self._may_begin(n)]
        releasable = [n for n, uses in self.uses.items() if uses > 0 and n not in self.scopes]
        kind = rng.random()
        if kind < 0.4 and closed:
            pool = rng.choice(closed[:3])
            self.scopes.append(pool)
            self.forgotten.discard(pool)
            self.uses[pool] = self.uses.get(pool, 0) + 1
            self.ops.append(["P", "b", pool, *self._marks()])
        elif kind < 0.75 and self.scopes:
            pool = self.scopes.pop(rng.randrange(len(self.scopes)))
            self.ops.append(["P", "e", pool])
            if self.has_deferred and not self.scopes and rng.random() < 0.3:
                self.empty_cache()
        elif releasable:
            pool = rng.choice(releasable)
            self.uses[pool] -= 1
            self.ops.append(["P", "r", pool])

    def _may_begin(self, pool: int) -> bool:
        return self.uses.get(pool) != 0 or pool in self.forgotten or self.rng.random() < 0.01

    def _marks(self) -> list[int]:
        if not self.with_marks:
            return []
        no_split = self.release.no_split and self.rng.random() < 0.2
        overflow = self.release.overflow.name != "NEVER" and self.rng.random() < 0.3
        return [int(no_split), int(overflow)] if no_split or overflow else []
