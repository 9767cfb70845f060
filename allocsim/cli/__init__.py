"""Entry point of the command `allocsim`.

Exit codes of every command:

    0    success
    1    a requested check failed
    2    the input or an option is wrong, or the output cannot be written (a closed standard output
         included): one sentence on standard error and nothing more on standard output
    3    the simulated device ran out of memory, and --fail-on-oom was given
    70   an error of allocsim itself; ALLOCSIM_DEBUG=1 adds the traceback
    130  interrupted
    141  the reader of standard output closed the pipe

Nothing heavy is imported before a command runs, so that --help answers at once.
"""

from __future__ import annotations

import atexit
import errno
import gc
import os
import sys
from collections.abc import Sequence

from allocsim.cli.parser import build_parser
from allocsim.cli.streams import discard_output, say, standard_streams
from allocsim.cli.usage import UsageError, one_line
from allocsim.errors import AllocsimError, InvariantError, OutOfMemoryError

__all__ = ["main"]

_BAD_INPUT, _OUR_FAULT, _INTERRUPTED, _NO_READER = 2, 70, 130, 141
_COLLECT_EVERY = 200_000
"""Threshold of the cycle collector, in new objects.

Almost none of them are cycles, and the data read from a recording is kept to the end
(benchmarks/results/speed.md).
"""
_BLAS_THREADS = "OPENBLAS_NUM_THREADS"
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EBADF, errno.EIO)
"""Errors of an output that cannot be written: a full disk, or a descriptor not open for writing."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (default: the process's own) and return its exit code."""
    _leave_in_peace()
    threshold = gc.get_threshold()
    gc.set_threshold(_COLLECT_EVERY, *threshold[1:])
    try:
        with standard_streams():
            return _run(argv)
    finally:
        gc.set_threshold(*threshold)


def _leave_in_peace() -> None:
    """Keep the interpreter from searching all objects for reference cycles at its exit.

    The search took 50 ms of the 1.2 s of `allocsim report` (benchmarks/results/speed.md).
    """
    atexit.unregister(gc.freeze)  # registered by an earlier call
    atexit.register(gc.freeze)


def _run(argv: Sequence[str] | None) -> int:
    try:
        words = sys.argv[1:] if argv is None else argv
        arguments = build_parser(*words[:1]).parse_args(words)
        _import_numpy()
        code: int = arguments.run(arguments)
        sys.stdout.flush()
    except SystemExit as stop:  # raised by --help and --version
        code = stop.code if isinstance(stop.code, int) else 0
    except BrokenPipeError:
        discard_output()
        code = _NO_READER
    except (Exception, KeyboardInterrupt) as error:
        if isinstance(error, OSError) and error.errno in _UNWRITABLE:
            discard_output()
        code, sentence = _ending(error)
        say(f"allocsim: {one_line(sentence)}\n")
    return code


def _import_numpy() -> None:
    """Import numpy without starting the threads of its linear algebra, which allocsim does not use.

    On two cores, starting the threads takes 0.1 s of processor time. The environment variable is
    removed afterwards, because programs that a command runs may need the threads.
    """
    if _BLAS_THREADS in os.environ:
        return
    os.environ[_BLAS_THREADS] = "1"
    try:
        import numpy  # noqa: F401, PLC0415
    finally:
        del os.environ[_BLAS_THREADS]


def _ending(error: BaseException) -> tuple[int, str]:
    """Return the exit code for the error that ended a command, and the sentence to print."""
    is_ours = isinstance(error, InvariantError | OutOfMemoryError)
    if isinstance(error, UsageError | AllocsimError) and not is_ours:
        return _BAD_INPUT, str(error)
    if isinstance(error, OSError) and error.errno in _UNWRITABLE:
        return _BAD_INPUT, f"the output cannot be written ({error.strerror})"
    if isinstance(error, MemoryError):
        return _BAD_INPUT, "this machine has too little memory for this recording"
    if isinstance(error, KeyboardInterrupt):
        return _INTERRUPTED, "interrupted"
    if os.environ.get("ALLOCSIM_DEBUG"):
        import traceback  # noqa: PLC0415

        say("".join(traceback.format_exception(error)))
    what = str(error) if isinstance(error, InvariantError) else f"{type(error).__name__}: {error}"
    return _OUR_FAULT, (
        f"an error of allocsim itself, please report it ({what}); "
        "ALLOCSIM_DEBUG=1 shows where it happened"
    )
