"""Stacks of a file, read once each and numbered.

A pickle shares a stack between its entries, so a stack is known by identity, which holds while
the file's objects are alive; JSON repeats it, and then it is known by its frames.  The number
of frames walked is bounded by the file's size: a file that repeats one long stack by reference
cannot make the reader walk further than an honest one of that size.
"""

from __future__ import annotations

from allocsim.trace.fields import INT32_MAX, Fields, describe
from allocsim.trace.frames import Frame, FrameInterner, FrameTable

__all__ = ["StackNumbers", "StackReader"]


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

    __slots__ = ("_budget", "_frames", "_interner", "_stacks")

    def __init__(self, file_size: int) -> None:
        self._budget = file_size
        self._interner = FrameInterner()
        self._frames: dict[int, int] = {}
        self._stacks: dict[int, int] = {}

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
        numbers = [self._frame(owner, frame) for frame in stack]
        return self._stacks.setdefault(id(stack), self._interner.stack(numbers))

    def table(self) -> FrameTable:
        """All frames and stacks read."""
        return self._interner.table()

    def _frame(self, owner: Fields, value: object) -> int:
        known = self._frames.get(id(value))
        if known is not None:
            return known
        fields = Fields(owner.path, f"a frame of {owner.where}", value, entry=owner.entry)
        frame = Frame(
            filename=fields.text("filename"),
            name=fields.text("name"),
            line=fields.integer("line", -INT32_MAX, INT32_MAX),
        )
        return self._frames.setdefault(id(value), self._interner.frame(frame))
