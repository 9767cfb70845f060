"""Give the model the decisions of a real GPU driver: segment addresses and free memory.

Rule: only values that the driver decides are read from the history of real PyTorch.  The address of
a new segment is in the entry of the segment, and the free memory of an error text in the `oom`
entry.  The model predicts all other values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from allocsim.core import CachingAllocator
from allocsim.errors import DriverRefusalError
from allocsim.units import format_size

__all__ = ["DriverTrace"]

_NEW_MEMORY = ("segment_alloc", "segment_map")
_ENDS_A_REQUEST = ("alloc", "oom")


class DriverTrace:
    """History of a real GPU; an entry is [action, address, bytes, number of the stream]."""

    def __init__(self, entries: Sequence[Sequence[Any]]) -> None:
        self._entries = entries

    def dictate(self, allocator: CachingAllocator) -> None:
        """Set the address of the next segment of the model.

        It is the address of the new segment in the next request of the history, if it has one.
        """
        if not self._entries:
            return
        done = len(allocator.history)
        for action, address, *_ in self._entries[done:]:
            if action in _NEW_MEMORY:
                allocator.device.dictate_address(address)
                return
            if action in _ENDS_A_REQUEST:
                return

    def correct(self, trace: Sequence[list[Any]], messages: list[str]) -> None:
        """Replace the free memory in the model's `oom` entries and error texts by the driver's."""
        texts = _naming_free_memory(messages)
        for ours, expected in zip(trace, self._entries, strict=False):
            if ours[0] != "oom":
                continue
            at = next(texts)
            if expected[0] == "oom":
                old, new = (
                    f"of which {format_size(answer[1])} is free" for answer in (ours, expected)
                )
                messages[at] = messages[at].replace(old, new)
                ours[1] = expected[1]


def _naming_free_memory(messages: Sequence[str]) -> Iterator[int]:
    """Yield the indices of the error texts that have an `oom` entry.

    Requests of more than 1 EiB and refusals of the driver have no such entry.
    """
    apart = ("more than 1EB memory", "preemptively rejected", DriverRefusalError.TEXT)
    return (i for i, text in enumerate(messages) if not any(words in text for words in apart))
