"""The line of the user's program behind an entry of a recording.

Rule: the user's own line is the innermost frame of the stack outside Python's library, installed
packages and compiled code; the frames inside it are folded, never lost.  Where a recording has
bare file names instead of paths, a package is recognised by the names of PyTorch's files only.

An entry without frames (every `oom` entry; what autograd's threads allocate) gets its code from
its neighbours, and is marked so:

1. what followed the last time the same allocations came in a row, if that has frames;
2. else the allocation closest before it that has frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from allocsim.trace import Action, Frame, FrameTable, Trace

__all__ = ["Code", "code_at", "code_names", "code_of", "is_foreign"]

_FOREIGN_PARTS = ("site-packages", "dist-packages", "/torch/", "/lib/python", "/usr/include/")
_COMPILED = (".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".so", ".inl")
_TORCH_FILES = frozenset(
    {
        *("__init__.py", "_compile.py", "_contextlib.py", "_decorators.py", "_device.py"),
        *("_functional.py", "_jit_internal.py", "_ops.py", "_tensor.py", "_utils.py"),
        *("activation.py", "adagrad.py"),
        *("adam.py", "adamw.py", "autocast_mode.py", "batchnorm.py", "checkpoint.py"),
        *("clip_grad.py", "container.py", "contextlib.py", "conv.py", "dropout.py"),
        *("eval_frame.py", "external_utils.py", "function.py", "functional.py", "grad_mode.py"),
        *("grad_scaler.py", "graph.py", "graphs.py", "init.py", "linear.py", "lr_scheduler.py"),
        *("module.py", "normalization.py", "optimizer.py", "overrides.py", "profiler.py"),
        *("runpy.py", "sgd.py", "sparse.py", "threading.py", "transformer.py"),
    }
)
"""Files of PyTorch and Python that allocate; for recordings with bare file names."""

_LONGEST_ROW = 32
"""Allocations compared when the same row is looked for earlier in the recording."""

_MOST_ROWS = 2000
"""Earlier places that are compared, the latest first."""


@dataclass(frozen=True, slots=True)
class Code:
    """Where in a program an entry came from.

    frame: the user's own line, or the innermost if all frames are foreign.
    folded: the number of frames inside it.
    stack: all frames, innermost first.
    inferred: "" if the entry has this stack itself, else how it was found.
    """

    frame: Frame
    folded: int
    stack: tuple[Frame, ...]
    inferred: str = ""

    def __str__(self) -> str:
        return f"{self.frame.filename}:{self.frame.line} {self.frame.name}"


def is_foreign(frame: Frame) -> bool:
    """Whether a frame belongs to an installed package, to Python itself or to compiled code."""
    name = frame.filename.replace("\\", "/")
    if not name or name == "??" or name.startswith("<frozen") or name.endswith(_COMPILED):
        return True
    if "/" in name:
        # The profiler's traces name files from the folder of packages on, without a slash.
        return any(part in f"/{name}" for part in _FOREIGN_PARTS)
    return name in _TORCH_FILES


def code_at(trace: Trace, entry: int) -> Code | None:
    """The code of `entry`; None if nothing in the recording tells it."""
    own = code_of(trace.frame_table.stack(int(trace.frames[entry])))
    if own is not None:
        return own
    before = np.flatnonzero(trace.action[:entry] == Action.ALLOC)
    followed = code_of(
        _followed(trace, before), "what followed the same allocations earlier in the recording"
    )
    if followed is not None:
        return followed
    known = before[trace.frames[before] >= 0]
    if not len(known):
        return None
    stack = trace.frame_table.stack(int(trace.frames[known[-1]]))
    return code_of(stack, f"the allocation before it, entry {int(known[-1]):,}")


def _followed(trace: Trace, before: np.ndarray[tuple[int], np.dtype[np.intp]]) -> Sequence[Frame]:
    """The stack that followed the longest row of stacks equal to the last ones; empty if none."""
    stacks = trace.frames[before]
    if len(stacks) < 2:
        return ()
    places = np.flatnonzero(stacks[:-1] == stacks[-1])[-_MOST_ROWS:]
    best, length = -1, 1  # a row of one is no more than the allocation before
    for place in places[::-1].tolist():
        row = 1
        while row < _LONGEST_ROW and row <= place and stacks[place - row] == stacks[-1 - row]:
            row += 1
        if row > length:
            best, length = place, row
    if best < 0:
        return ()
    return trace.frame_table.stack(int(stacks[best + 1]))


def code_of(stack: Sequence[Frame], inferred: str = "") -> Code | None:
    """The code of a stack, innermost frame first; None for an empty one."""
    if not stack:
        return None
    for depth, frame in enumerate(stack):
        if not is_foreign(frame):
            return Code(frame, depth, tuple(stack), inferred)
    python = (depth for depth, frame in enumerate(stack) if frame.filename.endswith(".py"))
    depth = next(python, 0)
    return Code(stack[depth], depth, tuple(stack), inferred)


def code_names(table: FrameTable) -> list[str | None]:
    """By stack, the user's own line in it; the last for -1."""
    codes = (code_of(table.stack(number)) for number in range(len(table)))
    return [*(None if code is None else str(code) for code in codes), None]
