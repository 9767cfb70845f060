"""Request sizes of a recording, including those of blocks from before its first entry."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from allocsim._fast_numpy import any_of, distinct
from allocsim.core import AllocatorConfig, Release
from allocsim.recording import Action, Trace
from allocsim.simulation.initial_state import live_requests
from allocsim.simulation.recorded_device import RecordedDevice


@dataclass(frozen=True, slots=True)
class Rounded:
    """Request sizes rounded under a setting (semantics 1.2).

    each: rounded size of every item of `RequestedSizes.sizes`, as the raw bytes of an int64 array,
        which are fast to compare and hash.
    distinct: distinct rounded sizes in bytes, ascending.
    """

    each: bytes
    distinct: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class RequestedSizes:
    """Sizes of one device's requests and initial blocks, in bytes.

    sizes: distinct request sizes before rounding, ascending, followed by the request sizes of
        blocks from before the first entry.
    present: sizes of the segments and blocks from before the first entry.
    """

    sizes: NDArray[np.int64]
    present: tuple[int, ...]

    def rounded(self, config: AllocatorConfig) -> Rounded:
        """Return the sizes as rounded under `config`; cached."""
        rounding = config.release, config.roundup_power2_divisions
        if rounding not in self._rounded:
            each = rounded_by(config, self.sizes)
            self._rounded[rounding] = Rounded(each.tobytes(), tuple(distinct(each).tolist()))
        return self._rounded[rounding]

    @cached_property
    def _rounded(self) -> dict[tuple[Release, tuple[int, ...]], Rounded]:
        return {}


def rounded_by(config: AllocatorConfig, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the block size for each request size; both are bytes (semantics 1.2).

    sizes: request sizes, at least 1 byte each.
    """
    starts, steps = _rounding_intervals(config, int(sizes.max(initial=1)).bit_length())
    step = steps[np.searchsorted(starts, sizes, side="right") - 1]
    return -(-sizes // step) * step


_Pieces = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Starts of size intervals, and the rounding step in each."""

_PIECES: dict[tuple[str, tuple[int, ...], int], _Pieces] = {}
"""Results of `_rounding_intervals`: a search rounds the sizes of many devices by a few settings."""


def _rounding_intervals(config: AllocatorConfig, n_bits: int) -> _Pieces:
    key = config.release.version, config.roundup_power2_divisions, n_bits
    if key not in _PIECES:
        _PIECES[key] = _find_pieces(config, n_bits)
    return _PIECES[key]


def _find_pieces(config: AllocatorConfig, n_bits: int) -> _Pieces:
    starts = [1]
    for bits in range(n_bits):
        low, high = 1 << bits, (2 << bits) - 1
        first = config.rounding_step(low)
        if config.rounding_step(high) != first:
            sizes = range(low, high + 1)
            starts.append(
                low + bisect_left(sizes, 1, key=lambda s: config.rounding_step(s) != first)
            )
        starts.append(high + 1)
    return np.array(starts[:-1]), np.array([config.rounding_step(start) for start in starts[:-1]])


def requested_of(device: RecordedDevice) -> RequestedSizes:
    """Return the distinct request sizes of a recorded device and of its initial blocks."""
    sizes = np.concatenate((distinct(sizes_in(device.trace)), sizes_at_start(device)))
    return RequestedSizes(sizes.astype(np.int64), sizes_present(device))


def sizes_in(trace: Trace) -> NDArray[np.int64]:
    """Return the size of each request of a trace that is not empty, in bytes."""
    return trace.size[any_of(trace.action, (Action.ALLOC, Action.OOM)) & (trace.size > 0)]


def sizes_present(device: RecordedDevice) -> tuple[int, ...]:
    """Return the distinct sizes of segments and blocks from before the first entry, in bytes."""
    blocks = [block for segment in device.start for block in segment.blocks]
    present = {segment.total_size for segment in device.start}
    return tuple(sorted(present | {block.size for block in blocks}))


def sizes_at_start(device: RecordedDevice) -> tuple[int, ...]:
    """Return the distinct request sizes of blocks from before the first entry, in bytes."""
    return tuple(sorted(live_requests(device.start)))
