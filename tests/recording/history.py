"""Toy allocator that records its memory history like PyTorch, for tests of the readers.

It is not the model: one stream per request, first fit, no options. Its state and entries agree with
each other, which is all that the readers and `start_state` need.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

from allocsim.recording import RELEASES
from allocsim.state import ALLOCATED, INACTIVE, PENDING
from allocsim.units import MIB, round_up

Plain = dict[str, Any]
BASE = 0x7F0000000000
MINORS = {release: int(release.split(".")[1]) for release in RELEASES}


class History:
    """Toy allocator and its history.

    segments: lists of blocks [address, size, requested_size, state], by segment address.
    """

    def __init__(self) -> None:
        self.entries: list[Plain] = []
        self.segments: dict[int, tuple[int, int, list[list[Any]]]] = {}
        self._next = BASE

    def alloc(self, size: int, stream: int = 0) -> int:
        """Allocate and record; return the address."""
        rounded = max(512, round_up(size, 512))
        blocks, at = self._fit(rounded, stream)
        block = blocks[at]
        left = block[1] - rounded
        if left >= 512 if rounded <= MIB else left > MIB:
            blocks.insert(at + 1, [block[0] + rounded, left, 0, INACTIVE])
            block[1] = rounded
        block[2:] = [size, ALLOCATED]
        self._record("alloc", block[0], size, stream)
        return int(block[0])

    def _fit(self, rounded: int, stream: int) -> tuple[list[list[Any]], int]:
        small = rounded <= MIB
        for size, owner, blocks in self.segments.values():
            for at, block in enumerate(blocks):
                fits = block[3] == INACTIVE and block[1] >= rounded
                if fits and owner == stream and (size == 2 * MIB) == small:
                    return blocks, at
        size = 2 * MIB if small else max(20 * MIB, round_up(rounded, 2 * MIB))
        address, self._next = self._next, self._next + size
        self.segments[address] = (size, stream, [[address, size, 0, INACTIVE]])
        self._record("segment_alloc", address, size, stream)
        return self.segments[address][2], 0

    def free(self, address: int, *, wait: bool = False) -> None:
        """Free and record; with `wait` the free stays pending until `complete`."""
        stream, blocks, at = self._find(address)
        blocks[at][3] = PENDING
        self._record("free_requested", address, blocks[at][2], stream)
        if not wait:
            self.complete(address)

    def complete(self, address: int) -> None:
        """Complete a pending free."""
        stream, blocks, at = self._find(address)
        self._record("free_completed", address, blocks[at][2], stream)
        blocks[at][3] = INACTIVE
        for left in (at, at - 1):
            pair = blocks[left : left + 2] if left >= 0 else []
            if len(pair) == 2 and pair[0][3] == pair[1][3] == INACTIVE:
                blocks[left : left + 2] = [[pair[0][0], pair[0][1] + pair[1][1], 0, INACTIVE]]

    def empty_cache(self) -> None:
        """Release segments without blocks in use."""
        for address, (size, stream, blocks) in list(self.segments.items()):
            if len(blocks) == 1 and blocks[0][3] == INACTIVE:
                self._record("segment_free", address, size, stream)
                del self.segments[address]

    def oom(self, size: int, device_free: int) -> None:
        """Record a request that failed."""
        self._record("oom", device_free, size, 0)
        self.entries[-1]["device_free"] = self.entries[-1].pop("addr")

    def _find(self, address: int) -> tuple[int, list[list[Any]], int]:
        for _, stream, blocks in self.segments.values():
            for at, block in enumerate(blocks):
                if block[0] == address:
                    return stream, blocks, at
        raise AssertionError(f"no block at {address}")

    def _record(self, action: str, addr: int, size: int, stream: int) -> None:
        self.entries.append({"action": action, "addr": addr, "size": size, "stream": stream})

    def live(self) -> dict[int, tuple[int, int, str]]:
        """Return size, requested size and state of the blocks in use, by address."""
        return {
            block[0]: (block[1], block[2], block[3])
            for _, _, blocks in self.segments.values()
            for block in blocks
            if block[3] != INACTIVE
        }

    def state(self, release: str = "2.15") -> list[Plain]:
        """Return the segments in the format of `release`."""
        minor = MINORS[release]
        return [
            _segment(address, *self.segments[address], minor=minor)
            for address in sorted(self.segments)
        ]

    def snapshot(self, release: str = "2.15") -> Plain:
        """Return the whole snapshot in the format of `release`."""
        minor = MINORS[release]
        snapshot: Plain = {
            "segments": self.state(release),
            "device_traces": [[_entry(e, i, minor) for i, e in enumerate(self.entries)], []],
        }
        if minor >= 3:
            snapshot["allocator_settings"] = _settings(minor)
        if minor >= 5:
            mark = {"name": "step", "stage": "START", "device": 0, "time_us": 5}
            snapshot["external_annotations"] = [mark]
        if minor >= 14:
            snapshot |= {"host_segments": [], "host_traces": []}
        return snapshot


STACK = [
    {"name": "forward", "filename": "model.py", "line": 7},
    {"name": "<module>", "filename": "train.py", "line": 1},
]


def _segment(address: int, size: int, stream: int, blocks: list[list[Any]], *, minor: int) -> Plain:
    active = [block for block in blocks if block[3] != INACTIVE]
    segment: Plain = {
        "device": 0,
        "address": address,
        "total_size": size,
        "allocated_size": sum(block[1] for block in blocks if block[3] == ALLOCATED),
        "active_size": sum(block[1] for block in active),
        "requested_size": sum(block[2] for block in active),
        "stream": stream,
        "segment_type": "small" if size == 2 * MIB else "large",
    }
    if minor >= 1:
        segment |= {"segment_pool_id": (0, 0), "is_expandable": False, "frames": STACK}
    segment["blocks"] = [_block(block, minor) for block in blocks]
    return segment


def _block(block: list[Any], minor: int) -> Plain:
    address, size, requested, state = block
    if minor >= 1:
        return {
            "address": address,
            "size": size,
            "requested_size": requested,
            "state": state,
            "frames": STACK if state != INACTIVE else [],
        }
    plain: Plain = {"size": size, "requested_size": requested, "state": state}
    if state != INACTIVE:
        plain["history"] = [{"addr": address, "real_size": requested, "frames": STACK}]
    return plain


def _entry(entry: Plain, index: int, minor: int) -> Plain:
    plain = {**entry, "frames": STACK}
    since = {
        "time_us": (2, 1000 + index),
        "compile_context": (8, "N/A"),
        "user_metadata": (10, ""),
        "pool_id": (12, (0, 0)),
    }
    return plain | {key: value for key, (first, value) in since.items() if minor >= first}


def _settings(minor: int) -> Plain:
    settings: Plain = {
        "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64",
        "max_split_size": 64 * MIB,
        "garbage_collection_threshold": 0.5,
        "expandable_segments": False,
        "pinned_num_register_threads": 1,
    }
    if minor >= 9:
        settings["graph_capture_record_stream_reuse"] = False
    if minor >= 13:
        settings |= {"max_round_threshold": -1, "max_cached_size": -1}
    settings["roundup_power2_divisions"] = {"1": 0, "2": 4}
    return settings


def training_step() -> History:
    """Return eight entries of a run from an empty device, with one block live at the end."""
    history = History()
    first, second = history.alloc(1000), history.alloc(3 * MIB)
    history.free(first)
    history.alloc(2000)
    history.free(second, wait=True)
    return history


def write(value: object, path: Path, protocol: int = 4) -> Path:
    """Pickle `value` at `path`."""
    path.write_bytes(pickle.dumps(value, protocol=protocol))
    return path
