"""`allocsim risk`: report how close a run comes to running out of memory."""

from __future__ import annotations

import argparse
from dataclasses import replace

from allocsim.cli.options import OUT_OF_MEMORY, Commands, add_command, add_shared
from allocsim.cli.output import ProgressBar, write_report

_SUMMARY = "report how close a run comes to running out of memory"
_DESCRIPTION = """\
Replays FILE on a device of the given memory and reports the headroom over time,
the request that came closest to failing, the smallest device for each setting,
the reserved memory that the largest request could not use, and the avoidable
fragmentation.  Every size is proved by replays."""


def add_to(commands: Commands) -> None:
    parser = add_command(commands, "risk", _SUMMARY, _DESCRIPTION, run)
    add_shared(parser, "file", "--device-memory", "--conf")
    settings = "find the smallest device for this setting; may be repeated (default: a few)"
    add_shared(parser, "--try", text=settings)
    add_shared(parser, "--torch")
    add_shared(parser, "--device", text="device to replay, if several are recorded")
    add_shared(parser, "--fail-on-oom", "--verbose", "--json")


def run(arguments: argparse.Namespace) -> int:
    from allocsim.analysis.risk import risk_of
    from allocsim.analysis.top import top_of_replay
    from allocsim.recording import load
    from allocsim.replaying import with_proof, with_range
    from allocsim.report import risk as report

    with ProgressBar() as bar:
        risk = risk_of(
            load(arguments.file),
            arguments.conf,
            device_memory=arguments.device_memory,
            torch_version=arguments.torch,
            device=arguments.device,
            confs=arguments.confs,
            progress=bar.stage("replaying"),
            watch=bar.trying,
        )
        top = None
        if not (arguments.json or arguments.verbose):
            top = top_of_replay([risk.prepared], risk.run)
        # Before output, because both may need replays.
        known = with_range(with_proof(risk.run))
        risk = replace(risk, run=known, device_run=known.devices[0])
    write_report(arguments, report, risk, top=top)
    return OUT_OF_MEMORY if arguments.fail_on_oom and risk.device_run.ooms else 0
