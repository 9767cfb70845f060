"""Line of the user's program that caused an entry of a recording.

The user's line is the innermost frame that is not in Python's library, an installed package or
compiled code.

An entry without frames gets the line of an earlier allocation.  The allocations just before the
entry are compared with earlier ones: if the same sequence of stacks occurred before, the allocation
that followed it there gives the line.  If not, the last allocation with frames gives the line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from allocsim.recording import Action, Frame, FrameTable, Trace

_PACKAGES = ("site-packages", "dist-packages")
_FOREIGN_PARTS = (*_PACKAGES, "/torch/", "/lib/python", "/usr/include/", "/allocsim/phantom/")
_SPAWNED = "multiprocessing/spawn.py"
"""End of the path of the file in Python's library that runs a spawned process.

The frame in "<string>" that calls this file is not a line of the user's program.
"""
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
"""Names of files in PyTorch and Python's library, for recordings whose file names have no folders.

A frame in a file with such a name is not a line of the user's program.
"""

_LONGEST_ROW = 32  # longest sequence of allocations that is compared with earlier ones

_MOST_ROWS = 2000  # largest number of earlier positions that are compared, from the latest on


@dataclass(frozen=True, slots=True)
class Code:
    """Code that caused an entry.

    frame: line of the user's program.  If all frames are in Python's library, installed packages or
        compiled code: the innermost frame of a package other than PyTorch, or if there is none, the
        innermost frame with a Python file.
    folded: number of frames that `frame` called, directly or indirectly.
    stack: all frames, innermost first.
    inferred: "" if the stack was recorded with the entry; else a text that names the entry from
        which it was taken.
    """

    frame: Frame
    folded: int
    stack: tuple[Frame, ...]
    inferred: str = ""

    def __str__(self) -> str:
        return f"{self.frame.filename}:{self.frame.line} {self.frame.name}"


def is_foreign(frame: Frame) -> bool:
    """Return True if a frame is in an installed package, Python's library or compiled code."""
    name = frame.filename.replace("\\", "/")
    if not name or name == "??" or name.startswith("<frozen") or name.endswith(_COMPILED):
        return True
    if "/" in name:
        # Profiler traces give paths relative to the folder of packages.
        return any(part in f"/{name}" for part in _FOREIGN_PARTS)
    return name in _TORCH_FILES


def _is_in_package(frame: Frame) -> bool:
    name = frame.filename.replace("\\", "/")
    return any(part in name for part in _PACKAGES) and "/torch/" not in name


def code_at(trace: Trace, entry: int) -> Code | None:
    own = code_of(trace.frame_table.stack(int(trace.frames[entry])))
    if own is not None:
        return own
    before = np.flatnonzero(trace.action[:entry] == Action.ALLOC)
    followed = code_of(
        _stack_after_same_sequence(trace, before),
        "what followed the same allocations earlier in the recording",
    )
    if followed is not None:
        return followed
    known = before[trace.frames[before] >= 0]
    if not len(known):
        return None
    stack = trace.frame_table.stack(int(trace.frames[known[-1]]))
    return code_of(stack, f"the allocation before it, entry {int(known[-1]):,}")


def _stack_after_same_sequence(
    trace: Trace, before: np.ndarray[tuple[int], np.dtype[np.intp]]
) -> Sequence[Frame]:
    # The result is the stack that followed the longest earlier sequence of equal stacks.
    stacks = trace.frames[before]
    if len(stacks) < 2:
        return ()
    places = np.flatnonzero(stacks[:-1] == stacks[-1])[-_MOST_ROWS:]
    best, length = -1, 1  # a match of length 1 is no better than the previous allocation
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
    """Return the line of the program that requested memory with `stack`; None if it is empty.

    inferred: source of a `stack` that was not recorded with the request; "" if it was.
    """
    if not stack:
        return None
    for depth, frame in enumerate(stack):
        is_spawned = depth > 0 and stack[depth - 1].filename.endswith(_SPAWNED)
        if not is_foreign(frame) and not (is_spawned and frame.filename == "<string>"):
            return Code(frame, depth, tuple(stack), inferred)
    python = [depth for depth, frame in enumerate(stack) if frame.filename.endswith(".py")]
    depth = next((each for each in python if _is_in_package(stack[each])), next(iter(python), 0))
    return Code(stack[depth], depth, tuple(stack), inferred)


def code_names(table: FrameTable) -> list[str | None]:
    """Return the line of the user's program, as text, for each stack in `table`.

    The last item of the list is None, because an entry without a stack has -1 as its index.
    """
    codes = (code_of(table.stack(number)) for number in range(len(table)))
    return [*(None if code is None else str(code) for code in codes), None]
