"""Stack frames, each kept once: `FrameTable.frames` are unique, and so are its stacks.

A recording of a million entries holds a few hundred stacks and a few thousand frames; a
column of stack numbers stands for all of them.  Stack i is `flat[offsets[i]:offsets[i + 1]]`,
innermost frame first, as PyTorch writes them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

__all__ = ["Frame", "FrameTable", "FrameInterner"]


@dataclass(frozen=True, slots=True)
class Frame:
    """A line of somebody's program."""

    filename: str
    name: str
    line: int


@dataclass(frozen=True, slots=True, eq=False)
class FrameTable:
    """Unique frames and the unique stacks made of them."""

    frames: tuple[Frame, ...] = ()
    flat: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    offsets: NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, np.int64))

    def __len__(self) -> int:
        """The number of stacks."""
        return len(self.offsets) - 1

    def stack(self, index: int) -> tuple[Frame, ...]:
        """The frames of stack `index`, innermost first; none for -1."""
        if index < 0:
            return ()
        if index >= len(self):
            raise IndexError(f"stack {index} is not one of the {len(self)} stacks recorded")
        first, last = self.offsets[index : index + 2].tolist()
        return tuple(self.frames[i] for i in self.flat[first:last].tolist())


class FrameInterner:
    """Numbers frames and stacks as they are met, and makes the table of them."""

    __slots__ = ("_frames", "_stacks")

    def __init__(self) -> None:
        self._frames: dict[Frame, int] = {}
        self._stacks: dict[tuple[int, ...], int] = {}

    def frame(self, frame: Frame) -> int:
        """The number of `frame`, new or known."""
        return self._frames.setdefault(frame, len(self._frames))

    def stack(self, numbers: Iterable[int]) -> int:
        """The number of the stack of these frame numbers; -1 for the empty one."""
        key = tuple(numbers)
        return self._stacks.setdefault(key, len(self._stacks)) if key else -1

    def table(self) -> FrameTable:
        """Everything met so far."""
        lengths = [0, *(len(stack) for stack in self._stacks)]
        flat = [number for stack in self._stacks for number in stack]
        return FrameTable(
            frames=tuple(self._frames),
            flat=np.array(flat, dtype=np.int32),
            offsets=np.cumsum(lengths, dtype=np.int64),
        )
