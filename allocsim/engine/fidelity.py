"""Recording against replay: every entry in order, every address, every final segment.

Rule: under the recorded settings the replay's own history must be the recording, entry by entry
(annotations and snapshots aside), and its final segments those of the file, block by block.
Stale sizes of inactive blocks are compared nowhere: a recording that starts mid-run cannot know
them.  The order of entries is compared up to the first that differs; addresses to the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from allocsim.core import TraceEntry
from allocsim.engine.result import Fidelity, Mismatch
from allocsim.state import INACTIVE, SegmentState
from allocsim.trace import Action, Trace

__all__ = ["FidelityCheck"]

_IGNORED = (Action.SNAPSHOT, Action.ANNOTATE)

Row = tuple[str, int, int, int]


class FidelityCheck:
    """Fed with the replay's history piece by piece, so that it is never held as a whole."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._entries = np.flatnonzero(~np.isin(trace.action, _IGNORED))
        self._rows = self._recorded()
        self._matched = 0
        self._addresses_matched = 0
        self._mismatch: Mismatch | None = None

    def _recorded(self) -> Iterator[tuple[int, Row]]:
        trace = self._trace
        names = [action.text for action in Action]
        for entry in self._entries.tolist():
            yield (
                entry,
                (
                    names[trace.action[entry]],
                    int(trace.addr[entry]),
                    int(trace.size[entry]),
                    int(trace.stream[entry]),
                ),
            )

    @property
    def has_parted(self) -> bool:
        """Whether an entry differed."""
        return self._mismatch is not None

    def address(self, recorded: int, replayed: int | None) -> None:
        """One `alloc` entry was answered."""
        self._addresses_matched += recorded == replayed

    def history(self, entries: Iterable[TraceEntry]) -> None:
        """The next entries of the replay."""
        if self._mismatch is not None:
            return
        for replayed in entries:
            got: Row = (replayed.action, replayed.address, replayed.size, replayed.stream)
            entry, expected = next(self._rows, (len(self._trace), None))
            if got != expected:
                self._mismatch = Mismatch(entry, _row_text(expected), _row_text(got))
                return
            self._matched += 1

    def result(self, segments: Iterable[SegmentState]) -> Fidelity:
        """The verdict, given the replay's final segments."""
        if self._mismatch is None and (left := next(self._rows, None)) is not None:
            self._mismatch = Mismatch(left[0], _row_text(left[1]), _row_text(None))
        replayed = {segment.address: _comparable(segment) for segment in segments}
        matched = 0
        for segment in self._trace.segments:
            expected = _comparable(segment)
            got = replayed.pop(segment.address, None)
            matched += got == expected
            if got != expected and self._mismatch is None:
                self._mismatch = Mismatch(
                    None, _difference(expected, got), _difference(got, expected)
                )
        if replayed and self._mismatch is None:
            self._mismatch = Mismatch(None, "no segment", f"one at {min(replayed):#x}")
        return Fidelity(
            allocations=self._trace.count(Action.ALLOC),
            addresses_matched=self._addresses_matched,
            segments=len(self._trace.segments),
            segments_matched=matched,
            entries=len(self._entries),
            entries_matched=self._matched,
            first_mismatch=self._mismatch,
        )


def _row_text(row: Row | None) -> str:
    if row is None:
        return "no further entry"
    action, address, size, stream = row
    place = f"with {address} bytes free" if action == "oom" else f"at {address:#x}"
    return f"{action} of {size} bytes {place} on stream {stream}"


_Segment = tuple[tuple[object, ...], ...]


def _comparable(segment: SegmentState) -> _Segment:
    """What of a segment is compared: stale sizes of inactive blocks are not."""
    head = (
        segment.address,
        segment.total_size,
        segment.stream,
        "small" if segment.is_small else "large",
        segment.pool_id,
        segment.is_expandable,
    )
    blocks = (
        (block.address, block.size, block.state)
        + ((block.requested_size,) if block.state != INACTIVE else ())
        for block in segment.blocks
    )
    return (head, *blocks)


def _difference(replayed: _Segment | None, other: _Segment | None) -> str:
    """What `replayed` has at the first place where it parts from `other`."""
    if replayed is None:
        return "no such segment"
    address, size = replayed[0][:2]
    for i, row in enumerate(replayed):
        if other is None or i >= len(other) or other[i] != row:
            part = "the segment" if i == 0 else f"block {i - 1}"
            return f"{part} of {address:#x} ({size} bytes) as {row}"
    return f"{len(replayed) - 1} blocks in the segment at {address:#x}"
