"""`allocsim record`: an unmodified program's memory history, on a GPU or on none.

Rule: the exit code is the program's; only what keeps the program from being started is ours.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from allocsim.cli.usage import Parser, UsageError, count, memory_size

if TYPE_CHECKING:
    from allocsim.phantom.gpu import Gpu
    from allocsim.phantom.record import Recorded, Request

__all__ = ["add_to", "run"]

_SUMMARY = "record a program's memory history, on a GPU or on one that is not there"
_DESCRIPTION = """\
Runs PROGRAM, unmodified, and writes its memory history as a snapshot that
allocsim and PyTorch's memory viewer open.  With --gpu or --device-memory, and
on a machine without a GPU, the program finds a phantom one: real PyTorch over
a CUDA driver that keeps books and computes nothing (every value is zero).
Otherwise it is recorded on the GPU that is there.  PROGRAM's Python needs a
CUDA build of torch, and need not have allocsim."""
_EPILOG = """\
example: allocsim record --gpu "RTX 4090" -o run.pickle -- python train.py
A loop that waits for a computed value never ends without a GPU; --max-entries
and --max-seconds end the program in order and still write the recording.
The exit code is the program's own."""
_DEFAULT_CARD = "RTX 4090"


def add_to(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add the command and its options."""
    parser = commands.add_parser(
        "record",
        help=_SUMMARY,
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        usage="allocsim record [options] -- PROGRAM [ARGUMENT ...]",
    )
    add = parser.add_argument
    add("program", metavar="PROGRAM", nargs="*", help="the command to run, after --")
    add("-o", "--out", metavar="FILE", type=Path, default=Path("snapshot.pickle"),
        help="where the recording goes; .gz packs it (default: snapshot.pickle)")  # fmt: skip
    add("--gpu", metavar="NAME", help='a phantom card by name, as "RTX 4090" or "A100 80GB"')
    add("--device-memory", metavar="SIZE", type=memory_size,
        help="a phantom device of this size, as 24GiB")  # fmt: skip
    add("--context-memory", metavar="SIZE", type=memory_size,
        help="what the CUDA context holds (default: 512 MiB of a card, else none)")  # fmt: skip
    add("--conf", metavar="CONF", help="PYTORCH_CUDA_ALLOC_CONF for the program")
    add("--work", choices=("when-waited", "at-once"), default="when-waited",
        help="when a phantom stream finishes its work (default: when-waited)")  # fmt: skip
    add("--max-entries", metavar="N", type=count, default=0,
        help="end the program after about N entries of history")  # fmt: skip
    add("--max-seconds", metavar="S", type=float, default=0.0,
        help="end the program after S seconds")  # fmt: skip
    add("--json", action="store_true",
        help="print JSON on standard output; the program's own goes to standard error")  # fmt: skip
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Carry the command out; returns the program's exit code."""
    from allocsim.phantom.record import Request, record  # noqa: PLC0415

    if not arguments.program:
        raise UsageError("record needs a program to run: allocsim record -- python train.py")
    if not 0 <= arguments.max_seconds < float("inf"):
        raise UsageError(f"--max-seconds {arguments.max_seconds} is no time, 0 or more seconds")
    request = Request(
        command=tuple(arguments.program),
        out=arguments.out,
        gpu=_gpu(arguments),
        conf=_checked_conf(arguments.conf),
        work=arguments.work,
        max_entries=arguments.max_entries,
        max_seconds=arguments.max_seconds,
        output_to_stderr=arguments.json,
    )
    recorded = record(request)
    if arguments.json:
        import json  # noqa: PLC0415

        sys.stdout.write(json.dumps(_document(request, recorded), indent=2) + "\n")
    else:
        sys.stderr.write(_text(request, recorded))
    return recorded.exit_code


def _gpu(arguments: argparse.Namespace) -> Gpu | None:
    """The phantom device that was asked for; None for the real one."""
    from dataclasses import replace  # noqa: PLC0415

    from allocsim.phantom.gpu import Gpu, find_gpu  # noqa: PLC0415
    from allocsim.phantom.record import has_gpu  # noqa: PLC0415

    if arguments.gpu is None and arguments.device_memory is None:
        if has_gpu():
            if arguments.context_memory is not None:
                raise UsageError("--context-memory is a phantom GPU's; add --gpu")
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


def _checked_conf(conf: str | None) -> str | None:
    """PyTorch itself judges the string; only what no environment can hold is refused here."""
    if conf is not None and ("\0" in conf or "\n" in conf):
        raise UsageError(f"--conf {conf[:80]!r} is not an option string of one line")
    return conf


def _document(request: Request, recorded: Recorded) -> dict[str, object]:
    gpu = request.gpu
    return {
        "exit_code": recorded.exit_code,
        "recordings": [
            {
                "file": str(process.file),
                "entries": process.entries,
                "oom": process.oom_text or None,
                "stopped_by": process.stopped_by or None,
            }
            for process in recorded.processes
        ],
        "is_phantom": gpu is not None,
        "device_name": gpu.name if gpu else None,
        "device_memory": gpu.memory if gpu else None,
        "context_memory": gpu.context_memory if gpu else None,
        "torch_version": recorded.torch.version if recorded.torch else None,
        "conf": request.conf,
    }


def _text(request: Request, recorded: Recorded) -> str:
    from allocsim.units import format_size  # noqa: PLC0415

    gpu = request.gpu
    where = f"a phantom {gpu.name}, {format_size(gpu.memory)}" if gpu else "the GPU"
    lines = [f"allocsim: recorded on {where}; the program's exit code: {recorded.exit_code}"]
    for process in recorded.processes:
        end = "; ended out of memory" if process.oom_text else ""
        end = f"; ended by --{process.stopped_by}" if process.stopped_by else end
        lines.append(f"allocsim: wrote {process.file}: {process.entries:,} entries{end}")
        lines.append(f"allocsim: next: allocsim replay {process.file}")
    if not recorded.processes:
        lines.append(
            "allocsim: nothing was recorded: no process used CUDA through PyTorch to its end "
            "(one that is killed, or runs as python -I or -E, leaves nothing)"
        )
    return "\n".join(lines) + "\n"
