"""Requests played on the model, and its history of them as a recording.

Rule: no entry is invented.  Addresses, driver calls and their order are those of a
`CachingAllocator` that keeps its history; only the line of code of each request and the
provenance (release and device, for a replay) are added.  Source: semantics 6.1 to 6.5.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from allocsim.core import NEWEST, CachingAllocator, TraceEntry
from allocsim.errors import OutOfMemoryError
from allocsim.state import INACTIVE, BlockState, PoolId, SegmentState
from allocsim.trace import Action, Frame, FrameInterner, Provenance, Recording, Trace, read_snapshot

__all__ = ["BASE_ADDRESS", "Recorder"]

BASE_ADDRESS = 0x7F00_0000_0000
"""Where the driver's addresses begin, as they do on a real machine."""

_CHUNK = 1 << 16
_SNAPSHOT_BOUND = 1 << 40
_CODES = {action.text: int(action) for action in Action}


class Recorder:
    """A device, and the recording of what is asked of it.

    device_memory: bytes, or text such as "16GiB".  conf: what PYTORCH_CUDA_ALLOC_CONF says.
    Raises ConfigError for what the allocator refuses.
    """

    def __init__(self, device_memory: int | str, conf: str = "") -> None:
        self.allocator = CachingAllocator(
            device_memory, conf, base_address=BASE_ADDRESS, record_history=True
        )
        self._interner = FrameInterner()
        self._history: list[TraceEntry] = self.allocator.history
        self._taken = 0
        self._calls: list[tuple[int, int]] = []
        self._pools: dict[PoolId, int] = {}
        self._columns: list[dict[str, NDArray[Any]]] = []
        self._oom_text = ""

    # -- requests ------------------------------------------------------------------------

    @property
    def n_entries(self) -> int:
        """How many entries the recording has so far."""
        return self._taken + len(self._history)

    def code(self, filename: str, name: str, line: int) -> int:
        """The number of a line of the imagined program, to be given with its requests."""
        return self._interner.stack([self._interner.frame(Frame(filename, name, line))])

    def malloc(self, size: int, code: int, stream: int = 0) -> int:
        """The address of a block of at least `size` bytes, 1 or more."""
        try:
            address = self.allocator.malloc(size, stream)
        finally:
            self._note(code)
        assert address is not None
        return address

    def free(self, address: int, code: int) -> None:
        """Free the block at `address`."""
        self.allocator.free(address)
        self._note(code)

    def rounds(self, rounds: int, entries: int | None) -> Iterator[int]:
        """0, 1, ... up to `rounds`, or until there are `entries` entries if that is given."""
        for number in count():
            if (number >= rounds) if entries is None else (self.n_entries >= entries):
                return
            yield number

    @contextmanager
    def program(self) -> Iterator[None]:
        """A program that an out-of-memory error ends, as it would a real one."""
        try:
            yield
        except OutOfMemoryError as error:
            self._oom_text = str(error)

    def _note(self, code: int) -> None:
        self._calls.append((len(self._history), code))
        if len(self._history) >= _CHUNK:
            self._take()

    # -- the recording -------------------------------------------------------------------

    def recording(self, kind: str, options: Mapping[str, object]) -> Recording:
        """The whole recording.  kind, options: those of `allocsim synth`."""
        self._note(-1)
        self._take()
        table = self._interner.table()
        empty = read_snapshot(f"synth {kind}", self.allocator.snapshot(), _SNAPSHOT_BOUND)
        self.allocator.take_history()
        columns = {
            name: np.concatenate([chunk[name] for chunk in self._columns])
            for name in self._columns[0]
        }
        segments = tuple(s for trace in empty.devices for s in trace.segments)
        actions = columns["action"]
        trace = Trace(
            device=0,
            **columns,  # type: ignore[arg-type]
            segments=_with_code(segments, columns),
            pool_ids=tuple(self._pools),
            frame_table=table,
            time_us=np.arange(len(actions), dtype=np.int64),
            texts=("N/A", ""),
            compile_context=np.full(len(actions), 0, np.int32),
            user_metadata=np.full(len(actions), 1, np.int32),
        )
        mapping = (Action.SEGMENT_MAP, Action.SEGMENT_UNMAP)
        markers = {f"action {action.text}" for action in mapping if action in actions}
        provenance = Provenance(
            torch_version=f"{NEWEST}.0",
            device_name="a device that allocsim synth imagined",
            device_memory=self.allocator.device.total,
            is_phantom=True,
            command=f"allocsim synth {kind}" + "".join(_flags(options)),
            oom_text=self._oom_text,
        )
        return replace(
            empty,
            devices=(trace,),
            frame_table=table,
            markers=empty.markers | markers | {"entries", *self.allocator.release.entry_fields},
            provenance=provenance,
        )

    def _take(self) -> None:
        """Turn the history so far into a chunk of columns, and forget it."""
        ends, codes = np.array(self._calls, dtype=np.int64).T
        columns = list(zip(*self._history, strict=True)) or [()] * 5
        actions, addresses, sizes, streams, pools = columns
        for pool in dict.fromkeys(pools):
            self._pools.setdefault(pool, len(self._pools))
        self._columns.append(
            {
                "action": np.array([_CODES[action] for action in actions], dtype=np.uint8),
                "addr": np.array(addresses, dtype=np.uint64),
                "size": np.array(sizes, dtype=np.int64),
                "stream": np.array(streams, dtype=np.uint64),
                "pool_id": np.array([self._pools[pool] for pool in pools], dtype=np.int32),
                "frames": np.repeat(codes, np.diff(ends, prepend=0)).astype(np.int32),
            }
        )
        self._taken += len(self._history)
        self._history.clear()
        self._calls.clear()


def _with_code(
    segments: tuple[SegmentState, ...], columns: Mapping[str, NDArray[Any]]
) -> tuple[SegmentState, ...]:
    """The segments, each active block with the code that made it."""
    rows = np.flatnonzero(columns["action"] == Action.ALLOC)
    # Of allocations at one address the last counts.
    code = dict(zip(columns["addr"][rows].tolist(), columns["frames"][rows].tolist(), strict=True))

    def known(block: BlockState) -> BlockState:
        frames = -1 if block.state == INACTIVE else code.get(block.address, -1)
        return replace(block, frames=frames)

    return tuple(replace(each, blocks=tuple(map(known, each.blocks))) for each in segments)


def _flags(options: Mapping[str, object]) -> Iterator[str]:
    """The options that are not off, as on a command line, each with a space before it."""
    for name, value in options.items():
        flag = f" --{name.replace('_', '-')}"
        if value is True:
            yield flag
        elif value is not None and value is not False and value != "":
            yield f"{flag} {value}"
