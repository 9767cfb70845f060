"""Stack frames, each kept once: `FrameTable.frames` are unique, and so are its stacks.

A recording of a million entries holds a few hundred stacks and a few thousand frames; a
column of stack numbers stands for all of them.  Stack i is `flat[offsets[i]:offsets[i + 1]]`,
innermost frame first, as PyTorch writes them.

A pickle shares a stack between its entries, and frames between stacks, so both are known by
identity while the file's objects are alive; JSON repeats them, and then they are known by their
values.  No more frames are walked than the file has bytes, however often it refers to one long
stack.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from allocsim.trace.fields import INT32_MAX, INT64_MAX, UINT64_MAX, Fields, describe

__all__ = ["Frame", "FrameTable", "FrameInterner", "StackNumbers", "StackReader"]

_WINDOWS = re.compile(r"[A-Za-z]:[\\/]|\\\\")


@dataclass(frozen=True, slots=True)
class Frame:
    """A line of a program."""

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

    @property
    def has_windows_paths(self) -> bool:
        r"""Whether a frame's file is named as on Windows: after a drive (C:\) or a server."""
        return any(_WINDOWS.match(frame.filename) for frame in self.frames)


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


class StackNumbers:
    """Stands in for `StackReader` where a file holds numbers of stacks in a known table."""

    __slots__ = ("_count",)

    def __init__(self, count: int) -> None:
        self._count = count

    def read(self, owner: Fields, name: str = "frames") -> int:
        """The stack number in field `name` of `owner`."""
        return owner.integer(name, -1, self._count - 1)


class StackReader:
    """Turns lists of frame dictionaries into stack numbers."""

    __slots__ = ("_alike", "_budget", "_frames", "_interner", "_stacks")

    def __init__(self, file_size: int) -> None:
        self._budget = file_size
        self._interner = FrameInterner()
        self._frames: dict[int, int] = {}
        self._stacks: dict[int, int] = {}
        self._alike: dict[tuple[int, ...], int] = {}

    def read(self, owner: Fields, name: str = "frames") -> int:
        """The number of the stack in field `name` of `owner`; -1 for an empty one."""
        stack = owner.items(name)
        known = self._stacks.get(id(stack))
        if known is not None:
            return known
        self._budget -= len(stack)
        if self._budget < 0:
            owner.refuse(
                f"{owner.where} has {name} {describe(stack)}, more frames than the file's size "
                "can hold"
            )
        frames = tuple(map(id, stack))
        number = self._alike.get(frames)
        if number is None:
            number = self._interner.stack([self._frame(owner, frame) for frame in stack])
            self._alike[frames] = number
        self._stacks[id(stack)] = number
        return number

    def table(self) -> FrameTable:
        """All frames and stacks read."""
        return self._interner.table()

    def _frame(self, owner: Fields, value: object) -> int:
        known = self._frames.get(id(value))
        if known is not None:
            return known
        fields = Fields(owner.path, f"a frame of {owner.where}", value, entry=owner.entry)
        filename, name = fields.text("filename"), fields.text("name")
        line = fields.integer("line", -INT32_MAX, UINT64_MAX)
        # Frames of C++ without a line are written as -1, which some releases write unsigned.
        frame = Frame(filename, name, line - UINT64_MAX - 1 if line > INT64_MAX else line)
        return self._frames.setdefault(id(value), self._interner.frame(frame))
