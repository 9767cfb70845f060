"""`allocsim record`: record the memory history of an unmodified program, with or without a GPU.

The exit code is that of the program.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from allocsim.cli.options import Commands, UsageError, add_command, add_shared, count, memory_size
from allocsim.cli.output import say, shown, write_json

if TYPE_CHECKING:
    from allocsim.phantom import Gpu

_SUMMARY = "record a program's memory history, with or without a GPU"
_DESCRIPTION = """\
Runs PROGRAM, unmodified, and writes its memory history as a snapshot for
allocsim and PyTorch's memory viewer.  With --gpu or --device-memory, and on a
machine without a GPU, the program uses a phantom GPU: real PyTorch on a CUDA
driver that tracks memory and runs no kernels (small integers and booleans are
computed on the host, every other value is zero).  Otherwise it is recorded on
the GPU of this machine.  PROGRAM's Python needs a CUDA build of torch; it does
not need allocsim."""
_EPILOG = """\
example: allocsim record --gpu "RTX 4090" -o run.pickle -- python train.py
A loop that waits for a computed value never ends without a GPU; --max-entries
and --max-seconds end the program and still write the recording.
The exit code is the program's own."""
_DEFAULT_CARD = "RTX 4090"


def add_to(commands: Commands) -> None:
    more = {"epilog": _EPILOG, "usage": "allocsim record [options] -- PROGRAM [ARGUMENT ...]"}
    parser = add_command(commands, "record", _SUMMARY, _DESCRIPTION, run, **more)
    add = parser.add_argument
    add("program", metavar="PROGRAM", nargs="*", help="the command to run, after --")
    add("-o", "--out", metavar="FILE", type=Path, default=Path("snapshot.pickle"),
        help="recording to write; .gz compresses it (default: snapshot.pickle)")  # fmt: skip
    add("--gpu", metavar="NAME", help='name of a phantom card, e.g. "RTX 4090" or "A100 80GB"')
    add_shared(parser, "--device-memory", text="memory of the phantom device, e.g. 24GiB")
    add("--context-memory", metavar="SIZE", type=memory_size,
        help="memory of the CUDA context (default: 512 MiB or less, by card)")  # fmt: skip
    add_shared(parser, "--conf", text="PYTORCH_CUDA_ALLOC_CONF of the program")
    add("--work", choices=("when-waited", "at-once"), default="when-waited",
        help="moment when a phantom stream finishes its work (default: when-waited)")  # fmt: skip
    add("--no-values", action="store_false", dest="values",
        help="do not compute integers and booleans on a phantom device; all are zero")  # fmt: skip
    add("--routing", choices=("balanced", "skewed"), default="balanced",
        help="on a phantom device, tokens choose experts evenly, or all the same ones "
        "(default: balanced)")  # fmt: skip
    add("--max-entries", metavar="N", type=count, default=0,
        help="end the program after about N entries of history")  # fmt: skip
    add("--max-seconds", metavar="S", type=float, default=0.0,
        help="end the program after S seconds")  # fmt: skip
    output = "print JSON on standard output; the program's output goes to standard error"
    add_shared(parser, "--json", text=output)


def run(arguments: argparse.Namespace) -> int:
    from allocsim.phantom import RecordedProgram, record
    from allocsim.report import record as report

    if not arguments.program:
        raise UsageError("record needs a program to run: allocsim record -- python train.py")
    if not 0 <= arguments.max_seconds < float("inf"):
        raise UsageError(
            f"--max-seconds {arguments.max_seconds} is not a time; expected seconds, 0 or more"
        )
    gpu = _gpu(arguments)
    if arguments.conf is not None and ("\0" in arguments.conf or "\n" in arguments.conf):
        # PyTorch checks all other arguments when the program runs.
        raise UsageError(f"--conf {arguments.conf[:80]!r} is not an option string of one line")
    program = RecordedProgram(
        command=tuple(arguments.program),
        out=arguments.out,
        gpu=gpu,
        conf=arguments.conf,
        work=arguments.work,
        values=arguments.values,
        routing=arguments.routing,
        max_entries=arguments.max_entries,
        max_seconds=arguments.max_seconds,
        output_to_stderr=arguments.json,
    )
    recorded = record(program)
    if arguments.json:
        write_json(report.document(program, recorded))
    else:
        say(shown(report.text(program, recorded), sys.stderr.encoding))
    return recorded.exit_code


def _gpu(arguments: argparse.Namespace) -> Gpu | None:
    from dataclasses import replace

    from allocsim.phantom import Gpu, find_gpu, has_gpu

    if arguments.gpu is None and arguments.device_memory is None:
        if has_gpu():
            if arguments.context_memory is not None:
                raise UsageError("--context-memory applies to a phantom GPU; add --gpu")
            return None
        gpu = find_gpu(_DEFAULT_CARD)
    elif arguments.gpu is None:
        gpu = Gpu("allocsim phantom", arguments.device_memory)
    else:
        gpu = find_gpu(arguments.gpu)
        if arguments.device_memory is not None:
            gpu = replace(gpu, memory=arguments.device_memory)
    if arguments.context_memory is not None:
        gpu = replace(gpu, context_memory=arguments.context_memory)
    return gpu
