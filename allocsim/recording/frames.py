"""Tables of the distinct stack frames and stacks of a recording.

A recording of a million entries has a few hundred distinct stacks, so an entry stores only the
index of its stack in a table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from allocsim.recording.fields import INT32_MAX, INT64_MAX, UINT64_MAX, Fields, describe

_WINDOWS = re.compile(r"[A-Za-z]:[\\/]|\\\\")


@dataclass(frozen=True, slots=True)
class Frame:
    filename: str
    name: str
    line: int


@dataclass(frozen=True, slots=True, eq=False)
class FrameTable:
    """Distinct frames and distinct stacks of a recording.

    frames: distinct frames.
    flat: indices in `frames` of all stacks, one stack after another, innermost frame first.
    offsets: index in `flat` where each stack begins; the last item is the length of `flat`.
    """

    frames: tuple[Frame, ...] = ()
    flat: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    offsets: NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, np.int64))

    def __len__(self) -> int:
        # The length is the number of stacks, not of frames.
        return len(self.offsets) - 1

    def stack(self, index: int) -> tuple[Frame, ...]:
        """Return the frames of stack `index`, innermost first; an empty tuple for -1."""
        if index < 0:
            return ()
        if index >= len(self):
            raise IndexError(f"stack {index} is not one of the {len(self)} stacks recorded")
        first, last = self.offsets[index : index + 2].tolist()
        return tuple(self.frames[i] for i in self.flat[first:last].tolist())

    @property
    def has_windows_paths(self) -> bool:
        r"""True if a file name begins with a Windows drive (C:\) or a server (\\name)."""
        return any(_WINDOWS.match(frame.filename) for frame in self.frames)


class FrameInterner:
    """Builder of a `FrameTable` that numbers frames and stacks in order of first use."""

    __slots__ = ("_frames", "_stacks")

    def __init__(self) -> None:
        self._frames: dict[Frame, int] = {}
        self._stacks: dict[tuple[int, ...], int] = {}

    def frame(self, frame: Frame) -> int:
        """Return the index of `frame` in the table; add it if it is new."""
        return self._frames.setdefault(frame, len(self._frames))

    def stack(self, numbers: Iterable[int]) -> int:
        """Return the index of a stack in the table, or -1 for an empty stack.

        A stack that is not in the table yet is added.

        numbers: indices of the stack's frames, innermost first.
        """
        key = tuple(numbers)
        return self._stacks.setdefault(key, len(self._stacks)) if key else -1

    def table(self) -> FrameTable:
        lengths = [0, *(len(stack) for stack in self._stacks)]
        flat = [number for stack in self._stacks for number in stack]
        return FrameTable(
            frames=tuple(self._frames),
            flat=np.array(flat, dtype=np.int32),
            offsets=np.cumsum(lengths, dtype=np.int64),
        )


class StackReader:
    """Reader of stacks, which are lists of frame dictionaries in a file; it returns their indices.

    file_size: bytes of the file; a file that refers to more frames than this is refused.
    """

    __slots__ = ("_alike", "_budget", "_frames", "_interner", "_stacks")

    def __init__(self, file_size: int) -> None:
        self._budget = file_size
        self._interner = FrameInterner()
        self._frames: dict[int, int] = {}
        self._stacks: dict[int, int] = {}
        self._alike: dict[tuple[int, ...], int] = {}

    def read(self, owner: Fields) -> int:
        """Return the index of the stack in the field "frames" of `owner`; -1 if it is empty."""
        stack = owner.items("frames")
        known = self._stacks.get(id(stack))
        if known is not None:
            return known
        self._budget -= len(stack)
        if self._budget < 0:
            owner.refuse(
                f"{owner.where} has frames {describe(stack)}, more frames than the file's size "
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
        return self._interner.table()

    def _frame(self, owner: Fields, value: object) -> int:
        known = self._frames.get(id(value))
        if known is not None:
            return known
        fields = Fields(owner.path, f"a frame of {owner.where}", value, entry=owner.entry)
        filename, name = fields.text("filename"), fields.text("name")
        line = fields.integer("line", -INT32_MAX, UINT64_MAX)
        # PyTorch writes line -1 for C++ frames without a line; some releases write it as unsigned.
        frame = Frame(filename, name, line - UINT64_MAX - 1 if line > INT64_MAX else line)
        return self._frames.setdefault(id(value), self._interner.frame(frame))
