"""Choose the confs and streams of a random script.

Rule: the release accepts each conf, given the large segment size that was in effect before it.
Options that would stop a release or make its results random are left out.  In some scripts
PyTorch's hash tables of streams overflow, because many raw handles hash to few of the 16 slots
(semantics 12.1).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from allocsim.core import Release

_LARGE_SEGMENT = 20
_SHARE = 0.3
"""Probability of each option that affects memory; large_segment_size_mb has half of it."""


class RandomSettings:
    """Random generator of the confs of one script.

    has_pools: True if the script begins allocating to pools.  Up to 2.12 PyTorch treats that as the
        capture of a CUDA graph, and graph_capture_record_stream_reuse would read a graph that does
        not exist (semantics 5.5), so a script never has both.
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
        """Return the next conf of the script; a large segment size in it affects later confs."""
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
"""Options that PyTorch accepts and that do not affect device memory, with their values."""


_FEW = ([0], [0], [0, 1], [0, 1, 2], [0, 3, 7, 9, 21, 40])
MANY = 8
"""Least number of streams with which a hash table can overflow."""
_COUNTS = (MANY, 12, 16)
_LARGEST_HANDLE = 1 << 47
_ALIGNMENT = 16
_GOLDEN = 11400714819323198485
_SLOTS = 16
_CROWDED_SLOTS = (2, 3, 3, 4, _SLOTS)
"""Number of neighbouring slots to which all handles of a script hash."""


@dataclass(frozen=True, slots=True)
class RandomStreams:
    """Streams of a script.

    numbers: stream numbers.
    handles: raw handles by stream number, where it is not number * 4096.
    """

    numbers: list[int]
    handles: dict[int, int] = field(default_factory=dict)

    @classmethod
    def make(cls, rng: random.Random) -> RandomStreams:
        """Return a few streams with default handles, or many whose handles hash to few slots."""
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
