"""Names of the owners of blocks: a line, stack, module of the model, stream or pool.

Requests of autograd's thread have no Python frames.  Their owner is inferred from two activations:
the last freed before the request, and the first freed after it.  The owner is the forward code that
both of their stacks contain.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from allocsim.metrics import code_of
from allocsim.ownership.blocks import Blocks
from allocsim.ownership.scene import Scene
from allocsim.ownership.stacks import file_name_of, is_call, is_layer, is_python
from allocsim.recording import Frame, FrameTable

AUTOGRAD = "backward (autograd)"
NO_STACK = "no stack recorded"
BEFORE = "from before the recording"

_PLUMBING = {
    *("_call_impl", "_wrapped_call_impl", "__torch_function__", "decorate_context", "_use_grad"),
    *("_fn", "maybe_fallback", "__call__", "no_grad", "inference_mode"),
    *("forward_with_checkpointing", "recompute_fn", "unpack_hook", "wrapper", "inner", "wrapped"),
    *("wrapped_func", "decorate_autocast"),
}
_PLUMBING_FILES = {"_compile.py", "checkpoint.py", "eval_frame.py"}
_CALLS_AGAIN = "recompute_fn"
"""Function of torch.utils.checkpoint that calls a module's forward again to recompute it."""
_MOVES = {"to", "cuda", "half", "float", "bfloat16"}  # functions that move or convert a module


@dataclass(frozen=True, slots=True)
class Whose:
    """Owner of a block, from the stack of its request.

    stack: Python frames of the request, innermost first; empty if unknown.  For a request of
        autograd, frames of the forward code that it differentiates.
    silent: reason why the request has no recorded stack, such as "no stack recorded"; "" if it has.
    """

    stack: tuple[Frame, ...]
    silent: str = ""

    def __hash__(self) -> int:
        # Two frames are enough; a hash of the whole stack doubles the time spent on owners.
        return hash((self.stack[:2], self.silent))

    def line(self, frames: int = 1) -> str:
        """Return the line of the user's code that requested the block, as text.

        frames: largest number of lines; above 1, the lines of callers follow.
        """
        code = code_of(self.stack)
        if code is None:
            return self.silent or NO_STACK
        own = self.stack[code.folded :][: max(frames, 1)]
        return self._said(" < ".join(line_of(frame) for frame in own))

    def module(self, frames: int) -> str:
        name = module_name(self.stack, frames)
        return self._said(name) if name else self.silent or NO_STACK

    def whole(self, frames: int) -> str:
        """Return the innermost frames of the stack, without wrapper functions, as text.

        frames: largest number of frames.
        """
        shown = [frame for frame in self.stack if not is_plumbing(frame)][:frames]
        lines = " < ".join(map(line_of, shown))
        return self._said(lines) if lines else self.silent or NO_STACK

    def _said(self, name: str) -> str:
        return f"{self.silent} of {name}" if self.silent else name


def line_of(frame: Frame) -> str:
    return f"{file_name_of(frame)}:{frame.line} {frame.name}"


def is_plumbing(frame: Frame) -> bool:
    return (
        frame.name.rpartition("<locals>.")[2] in _PLUMBING or file_name_of(frame) in _PLUMBING_FILES
    )


def module_name(stack: Sequence[Frame], frames: int) -> str:
    """Return the names of the modules whose forward is in a stack, innermost first, as one text.

    If there is no such module, return the names of the stack's functions.

    frames: largest number of names.
    """
    called = _called(stack)
    if not called:
        called = [frame for frame in stack if not is_plumbing(frame) and not _moves(frame)]
    parts: list[str] = []
    for frame in called:
        part = _part(frame)
        if not parts or parts[-1] != part:
            parts.append(part)
    return " < ".join(parts[:frames])


def _called(stack: Sequence[Frame]) -> list[Frame]:
    called = []
    is_next = False
    for frame in reversed(stack):
        if is_call(frame) or frame.name == _CALLS_AGAIN:
            is_next = True
        elif is_next and not is_plumbing(frame):
            called.append(frame)
            is_next = False
    return called[::-1]


def _moves(frame: Frame) -> bool:
    is_between = file_name_of(frame) in ("module.py", "_device.py", "functional.py")
    return is_between or frame.name in _MOVES


def _part(frame: Frame) -> str:
    if "." in frame.name:
        return frame.name
    stem = file_name_of(frame).removesuffix(".py")
    return f"{stem}.{frame.name}" + ("" if is_layer(frame) else f":{frame.line}")


def whose_of(
    scene: Scene, rows: NDArray[np.intp], table: FrameTable, activations: NDArray[np.bool_]
) -> list[Whose]:
    """Return the owner of each block in `rows`.

    rows: indices of blocks in `scene.blocks`.
    table: frames of the stacks of `scene.blocks`.
    activations: mask over all blocks: True for activations, from which the owners of autograd's
        requests are inferred.
    """
    blocks = scene.blocks
    python: dict[int, tuple[Frame, ...]] = {}
    known: dict[int, Whose] = {}
    between: dict[tuple[int, ...], Whose] = {}
    nodes = _Nodes(scene, activations)
    found = []
    for row in rows.tolist():
        number = int(blocks.stack[row])
        if number not in python:
            python[number] = tuple(frame for frame in table.stack(number) if is_python(frame))
        stack = python[number]
        if stack and not scene.is_bare[row]:
            found.append(known.setdefault(number, Whose(stack)))
        elif scene.is_before[row]:
            found.append(Whose((), BEFORE if number < 0 and scene.has_lives else NO_STACK))
        elif scene.is_bare[row] and nodes.sees_backward(row):
            around = nodes.around(row)
            if around not in between:
                between[around] = Whose(_common_callers(table, around), AUTOGRAD)
            found.append(between[around])
        else:
            found.append(Whose(stack, "" if stack else NO_STACK))
    return found


class _Nodes:
    def __init__(self, scene: Scene, activations: NDArray[np.bool_]) -> None:
        self._scene = scene
        rows = np.flatnonzero(activations & (scene.blocks.stack >= 0))
        order = np.argsort(scene.blocks.freed[rows], kind="stable")
        self._rows = rows[order]
        self._freed = scene.blocks.freed[self._rows]

    def sees_backward(self, row: int) -> bool:
        return bool(self._scene.backwards.of(self._scene.blocks.born[row : row + 1])[0] >= 0)

    def around(self, row: int) -> tuple[int, ...]:
        # Returns the stacks of the activations that the same backward pass freed just before and
        # just after the request.
        scene, blocks = self._scene, self._scene.blocks
        born = int(blocks.born[row])
        span = int(scene.backwards.of(blocks.born[row : row + 1])[0])
        first, after = int(scene.backwards.first[span]), int(scene.backwards.after[span])
        at = int(np.searchsorted(self._freed, born))
        near = [i for i in (at - 1, at) if 0 <= i < len(self._rows)]
        inside = [i for i in near if first <= self._freed[i] < min(after, blocks.n_entries)]
        return tuple(int(blocks.stack[self._rows[i]]) for i in inside)


def _common_callers(table: FrameTable, stacks: tuple[int, ...]) -> tuple[Frame, ...]:
    if not stacks:
        return ()
    known = [[f for f in table.stack(stack) if is_python(f)][::-1] for stack in stacks]
    shared = []
    for frames in zip(*known, strict=False):
        if any(frame != frames[0] for frame in frames):
            break
        shared.append(frames[0])
    while shared and (is_call(shared[-1]) or is_plumbing(shared[-1])):
        shared.pop()
    return tuple(shared[::-1])


def stream_name(blocks: Blocks, row: int) -> str:
    stream = int(blocks.stream[row])
    return f"stream 0x{stream:x}" if stream else "the default stream"


def pool_name(blocks: Blocks, row: int) -> str:
    pool = int(blocks.pool[row])
    return "the default pool" if pool < 0 else f"private pool {blocks.pools[pool]}"


LINE = re.compile(r":(\d+)")
"""Pattern for line numbers in the name of an owner, such as ":12"."""


def moved_lines(before: Iterable[str], now: Iterable[str]) -> dict[str, str]:
    """Match owners of two recordings whose names differ only in line numbers.

    Return a dictionary from the name in the new recording to the name in the old one.  If several
    names differ only in line numbers, they are matched in order of these numbers, provided that
    both recordings have equally many of them.

    before, now: names of all owners in the old and in the new recording.
    """
    known = set(before), set(now)
    alone: list[dict[str, list[str]]] = [defaultdict(list), defaultdict(list)]
    for side, other, found in zip(known, known[::-1], alone, strict=True):
        for name in sorted(side - other, key=lambda name: [*map(int, LINE.findall(name))]):
            found[LINE.sub("", name)].append(name)
    return {
        new: old
        for name, names in alone[1].items()
        if len(alone[0].get(name, ())) == len(names)
        for new, old in zip(names, alone[0][name], strict=True)
    }


def status_of(change: int, *, was_there: bool, is_there: bool) -> str:
    if not was_there:
        return "new"
    if not is_there:
        return "gone"
    if not change:
        return "same"
    return "larger" if change > 0 else "smaller"
