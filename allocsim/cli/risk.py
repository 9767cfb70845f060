"""`allocsim risk`: how near a run comes to running out of memory, before it does.

Rule: the whole answer is made before its first character is printed.
"""

from __future__ import annotations

import argparse

from allocsim.cli.output import write
from allocsim.cli.progress import ProgressBar
from allocsim.cli.usage import Parser, count, memory_size

__all__ = ["add_to", "run"]

_SUMMARY = "say how near a run comes to running out of memory"
_DESCRIPTION = """\
Replays FILE on a device of the given memory and tells the headroom over time,
the request that came closest to failing, the smallest device for each setting,
how much of the reserved memory was no use to the largest request, and how much
fragmentation could be avoided.  Every size is proved by replays."""
_OUT_OF_MEMORY = 3


def add_to(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add the command and its options."""
    parser = commands.add_parser(
        "risk",
        help=_SUMMARY,
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("file", metavar="FILE", help="a snapshot: pickle, JSON or .npz, plain or gzip")
    add(
        "--device-memory",
        metavar="SIZE",
        type=memory_size,
        help="memory of the device, as 24GiB (default: what the recording tells)",
    )
    add("--conf", metavar="CONF", help="PYTORCH_CUDA_ALLOC_CONF to replay under; '' for none")
    add(
        "--try",
        metavar="CONF",
        action="append",
        dest="confs",
        help="a setting whose smallest device to look for; may be repeated (default: a few)",
    )
    add("--torch", metavar="VERSION", help="PyTorch's release, 2.1 to 2.15 (default: likewise)")
    add("--device", metavar="N", type=count, help="the device, where several are recorded")
    add("--fail-on-oom", action="store_true", help="exit 3 if the device runs out of memory")
    add("--json", action="store_true", help="print JSON instead of text")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Carry the command out; returns its exit code."""
    from allocsim.report import risk_document, risk_text  # noqa: PLC0415
    from allocsim.trace import load  # noqa: PLC0415
    from allocsim.tuning import risk_of  # noqa: PLC0415

    with ProgressBar() as bar:
        risk = risk_of(
            load(arguments.file),
            arguments.conf,
            device_memory=arguments.device_memory,
            torch_version=arguments.torch,
            device=arguments.device,
            confs=arguments.confs,
            progress=bar.stage("replaying"),
            watch=lambda conf: bar.stage(f"trying {conf[:32] or 'the defaults'}"),
        )
    if arguments.json:
        import json  # noqa: PLC0415

        text = json.dumps(risk_document(risk), indent=2) + "\n"
    else:
        text = risk_text(risk)
    write(text)
    return _OUT_OF_MEMORY if arguments.fail_on_oom and risk.device_run.ooms else 0
