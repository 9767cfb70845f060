"""`allocsim colocate`: replay several recorded programs on one card."""

from __future__ import annotations

import argparse

from allocsim.cli.options import OUT_OF_MEMORY, Commands, add_command, add_shared, memory_size
from allocsim.cli.output import ProgressBar, write_report

_SUMMARY = "replay several recorded programs together on one card"
_DESCRIPTION = """\
Replays several recordings on one card.  The programs, named A, B and so on in
the order of the files, run in phases, one after another, or at once, at the
recorded times.  The answer is the peak of the card, the phase that fails, what
each program keeps, the smallest card, and what an empty_cache between the
phases or expandable segments would save."""


def add_to(commands: Commands) -> None:
    parser = add_command(commands, "colocate", _SUMMARY, _DESCRIPTION, run)
    add_shared(parser, "files")
    add_shared(parser, "--device-memory", text="memory of the card, e.g. 80GiB (default: no limit)")
    add = parser.add_argument
    order = parser.add_mutually_exclusive_group()
    order.add_argument("--phases", metavar="NAME:PROGRAM[@ENTRY],...",
        help="phases in order, each with its program and the entry at which it ends, e.g. "
        "rollout:B@900,train:A,rollout:B (default: each program once)")  # fmt: skip
    order.add_argument("--interleave", choices=("time",),
        help="time: all programs run at once, at the recorded times")  # fmt: skip
    add("--threads", action="store_true",
        help="the programs are threads of one process and share its allocator")  # fmt: skip
    add("--sleep", metavar="[PROGRAM:]KIND", action="append", default=[],
        help="memory that a program releases after each phase: none, cache (empty_cache), pools "
        "(its MemPools), level1 or level2 (as vLLM), all, exit; may be repeated")  # fmt: skip
    add_shared(parser, "--conf")
    add("--context", metavar="SIZE", type=memory_size,
        help="memory of the CUDA context of each process (default: as recorded)")  # fmt: skip
    add("--no-smallest", action="store_false", dest="smallest",
        help="do not search for the smallest card, which takes some ten replays for each "
        "row")  # fmt: skip
    add_shared(parser, "--torch")
    add_shared(parser, "--device", text="device to replay, if several are recorded")
    add_shared(parser, "--fail-on-oom", "--verbose", "--json")


def run(arguments: argparse.Namespace) -> int:
    from allocsim.analysis.colocate import colocate
    from allocsim.report import colocate as report

    with ProgressBar() as bar:
        found = colocate(
            arguments.files,
            device_memory=arguments.device_memory,
            phases=arguments.phases,
            by_time=arguments.interleave == "time",
            threads=arguments.threads,
            sleep=arguments.sleep,
            conf=arguments.conf,
            context=arguments.context,
            torch_version=arguments.torch,
            device=arguments.device,
            smallest=arguments.smallest,
            watch=bar.stage,
        )
    write_report(arguments, report, found)
    return OUT_OF_MEMORY if arguments.fail_on_oom and not found.fits else 0
