"""Recorder of a simulated program: it calls the allocator model and returns a recording.

For each request, the caller gives a line of the simulated program, which is recorded as the stack.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from allocsim.core import NEWEST, CachingAllocator, ReplayAllocator, TraceEntry
from allocsim.errors import OutOfMemoryError
from allocsim.recording import (
    ACTION_CODES,
    Action,
    Frame,
    FrameInterner,
    FrameTable,
    Provenance,
    Recording,
    Trace,
    read_snapshot,
)
from allocsim.simulation import fold
from allocsim.state import DEFAULT_POOL, INACTIVE, BlockState, PoolId, SegmentState

_SNAPSHOT_BOUND = 1 << 40


class KeptHistory:
    """History entries of one device, collected as one array per field, then made a recording."""

    def __init__(self) -> None:
        self._pools: dict[PoolId, int] = {}
        self._columns: list[dict[str, NDArray[Any]]] = []

    def take(
        self, history: Sequence[TraceEntry], frames: NDArray[np.int64]
    ) -> dict[str, NDArray[Any]]:
        """Append entries of an allocator's history, and return their arrays, keyed by field.

        frames: stack index of each entry; -1 without a stack.
        """
        columns = list(zip(*history, strict=True)) or [()] * 5
        actions, addresses, sizes, streams, pools = columns
        for pool in dict.fromkeys(pools):
            self._pools.setdefault(pool, len(self._pools))
        self._columns.append(
            {
                "action": np.array([ACTION_CODES[action] for action in actions], dtype=np.uint8),
                "addr": np.array(addresses, dtype=np.uint64),
                "size": np.array(sizes, dtype=np.int64),
                "stream": np.array(streams, dtype=np.uint64),
                "pool_id": np.array([self._pools[pool] for pool in pools], dtype=np.int32),
                "frames": frames.astype(np.int32),
            }
        )
        return self._columns[-1]

    def put_in(
        self,
        action: NDArray[np.uint8],
        addr: NDArray[np.uint64],
        size: NDArray[np.int64],
        frames: NDArray[np.int64],
    ) -> None:
        """Append entries on stream 0 and in the default pool.

        action, addr, size: one item per entry, as in `Trace`.
        frames: stack index of each entry; -1 without a stack.
        """
        pool = self._pools.setdefault(DEFAULT_POOL, len(self._pools))
        self._columns.append(
            {
                "action": action,
                "addr": addr,
                "size": size,
                "stream": np.broadcast_to(np.uint64(0), len(action)),
                "pool_id": np.broadcast_to(np.int32(pool), len(action)),
                "frames": frames.astype(np.int32, copy=False),
            }
        )

    def _whole(self) -> dict[str, NDArray[Any]]:
        names, *others = self._columns
        if not others:
            return names
        return {name: np.concatenate([each[name] for each in self._columns]) for name in names}

    def recording(
        self, path: str, allocator: CachingAllocator, table: FrameTable, provenance: Provenance
    ) -> Recording:
        """Return a recording of the appended entries and of the segments of `allocator`.

        path: name of the recording.
        allocator: allocator from which the entries come; its own history is cleared.
        table: stacks of the entries.
        provenance: facts about the program and its GPU.
        """
        segments = allocator.segments()
        snapshot = allocator.snapshot()
        del snapshot["segments"][1:]  # one segment shows which keys exist; reading all took 25 ms
        empty = read_snapshot(path, snapshot, _SNAPSHOT_BOUND)
        allocator.take_history()
        columns = self._whole()
        actions = columns["action"]
        trace = Trace(
            device=allocator.device_index,
            **columns,  # type: ignore[arg-type]
            segments=_with_code(segments, columns),
            pool_ids=tuple(self._pools),
            frame_table=table,
            time_us=np.arange(len(actions), dtype=np.int64),
            texts=("N/A", ""),
            compile_context=np.broadcast_to(np.int32(0), len(actions)),
            user_metadata=np.broadcast_to(np.int32(1), len(actions)),
        )
        mapping = (Action.SEGMENT_MAP, Action.SEGMENT_UNMAP)
        markers = {f"action {action.text}" for action in mapping if action in actions}
        return replace(
            empty,
            devices=(trace,),
            frame_table=table,
            markers=empty.markers | markers | {"entries", *allocator.release.entry_fields},
            provenance=provenance,
        )


def _with_code(
    segments: tuple[SegmentState, ...], columns: Mapping[str, NDArray[Any]]
) -> tuple[SegmentState, ...]:
    blocks = (block for each in segments for block in each.blocks if block.state != INACTIVE)
    held = np.array([block.address for block in blocks], dtype=np.uint64)
    held = np.append(np.sort(held), 0)  # searchsorted gives the index of the 0 above all addresses
    rows = np.flatnonzero(columns["action"] == Action.ALLOC)
    address = columns["addr"][rows]
    rows = rows[held[np.searchsorted(held[:-1], address)] == address]
    # If an address was allocated several times, the dictionary keeps the last allocation.
    code = dict(zip(columns["addr"][rows].tolist(), columns["frames"][rows].tolist(), strict=True))

    def known(block: BlockState) -> BlockState:
        frames = -1 if block.state == INACTIVE else code.get(block.address, -1)
        return block if frames == block.frames else replace(block, frames=frames)

    return tuple(replace(each, blocks=tuple(map(known, each.blocks))) for each in segments)


BASE_ADDRESS = 0x7F00_0000_0000
"""Default address of the first segment, similar to addresses on a real machine."""

SUFFIXES = (".pickle", ".pkl", ".pickle.gz", ".pkl.gz", ".npz")
"""Supported file name endings.  PyTorch's viewer opens pickles; `.npz` loads fastest."""

_CHUNK = 1 << 16


class Recorder:
    """Simulated allocator that records its requests, each with a line of code as its stack.

    device_memory: bytes, or text such as "16GiB".
    conf: value of PYTORCH_CUDA_ALLOC_CONF.
    release: PyTorch release, such as "2.11".
    context_memory: bytes of the CUDA context.
    base_address: address of the first segment.
    oom_text: text of the out-of-memory error that ended the program; "" without an error.

    Raises ConfigError for an invalid setting.
    """

    def __init__(
        self,
        device_memory: int | str,
        conf: str = "",
        release: str = NEWEST,
        *,
        context_memory: int = 0,
        base_address: int = BASE_ADDRESS,
    ) -> None:
        self.allocator = ReplayAllocator(
            device_memory,
            conf,
            release,
            context_memory=context_memory,
            base_address=base_address,
            record_history=True,
        )
        self.allocator.count_with(fold)
        self._interner = FrameInterner()
        self._history: list[TraceEntry] = self.allocator.history
        self._taken = 0
        self._calls: list[tuple[int, int]] = []
        self._kept = KeptHistory()
        self.oom_text = ""

    # -- requests ------------------------------------------------------------------------

    @property
    def n_entries(self) -> int:
        return self._taken + len(self._history)

    def code(self, filename: str, name: str, line: int) -> int:
        """Register a line of the simulated program; return its index for `malloc` and `free`."""
        return self._interner.stack([self._interner.frame(Frame(filename, name, line))])

    def malloc(self, size: int, code: int, stream: int = 0) -> int:
        """Allocate `size` bytes and return their address.

        code: index of the line to record as the request's stack; method `code` registers lines.
        """
        try:
            address = self.allocator.malloc(size, stream)
        finally:
            self._note(code)
        assert address is not None
        return address

    def free(self, address: int, code: int) -> None:
        self.allocator.free(address)
        self._note(code)

    def empty_cache(self) -> None:
        self.allocator.empty_cache()
        self._note(-1)

    def rounds(self, rounds: int, entries: int | None) -> Iterator[int]:
        """Yield 0, 1, 2 and so on, `rounds` numbers in all.

        entries: number of history entries at which to stop; if given, `rounds` is ignored.
        """
        for number in count():
            if (number >= rounds) if entries is None else (self.n_entries >= entries):
                return
            yield number

    @contextmanager
    def program(self) -> Iterator[None]:
        """Run the simulated program in a `with` block that an out-of-memory error ends.

        The error is not raised; its text is stored in `oom_text`.
        """
        try:
            yield
        except OutOfMemoryError as error:
            self.oom_text = str(error)

    def _note(self, code: int) -> None:
        self._calls.append((len(self._history), code))
        if len(self._history) >= _CHUNK:
            self._take()

    # -- the recording -------------------------------------------------------------------

    def recording(self, kind: str, options: Mapping[str, object]) -> Recording:
        """Return the recording of all requests.

        kind, options: arguments of `allocsim synth`, to store the command in the recording.
        """
        provenance = Provenance(
            torch_version=f"{NEWEST}.0",
            device_name="a device that allocsim synth imagined",
            device_memory=self.allocator.device.total,
            is_phantom=True,
            command=f"allocsim synth {kind}" + "".join(_flags(options)),
            oom_text=self.oom_text,
        )
        self._note(-1)
        self._take()
        table = self._interner.table()
        return self._kept.recording(f"synth {kind}", self.allocator, table, provenance)

    def _take(self) -> None:
        ends, codes = np.array(self._calls, dtype=np.int64).T
        self._kept.take(self._history, np.repeat(codes, np.diff(ends, prepend=0)))
        self._taken += len(self._history)
        self._history.clear()
        self._calls.clear()


def _flags(options: Mapping[str, object]) -> Iterator[str]:
    for name, value in options.items():
        flag = f" --{name.replace('_', '-')}"
        if value is True:
            yield flag
        elif value is not None and value is not False and value != "":
            yield f"{flag} {value}"


def write_recording(recording: Recording, path: str | os.PathLike[str]) -> None:
    """Write `recording` to the file `path`, which is replaced if it exists.

    The ending of the name selects the format.  Equal recordings give equal bytes; gzip files have
    no timestamp.

    Raises ValueError if the name ends in none of `SUFFIXES`, and OSError if writing fails.
    """
    name = os.fspath(path)
    if not name.endswith(SUFFIXES):
        raise ValueError(f"{name} ends in none of {', '.join(SUFFIXES)}")
    from allocsim.recording import write_npz, write_snapshot  # noqa: PLC0415  (slow)

    write = write_npz if name.endswith(".npz") else write_snapshot
    write(recording, name)
