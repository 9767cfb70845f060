"""`allocsim watch`: report recordings as they arrive, and explain out-of-memory errors."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from allocsim.cli.options import Commands, UsageError, add_command, add_shared, seconds
from allocsim.cli.output import write, write_json
from allocsim.errors import AllocsimError, InvariantError

if TYPE_CHECKING:
    from allocsim.analysis.explain import Verdict
    from allocsim.analysis.watch import Arrival, Unreadable

_SUMMARY = "report new recordings in a folder, and explain their errors"
_DESCRIPTION = """\
Polls a folder and its subfolders, and prints a line for each new recording, and
the verdict of allocsim explain for each recording with an out-of-memory error.
A file is read when it stops growing; an unreadable file is named once.  Ctrl-C
ends the command with exit code 0."""


def add_to(commands: Commands) -> None:
    parser = add_command(commands, "watch", _SUMMARY, _DESCRIPTION, run)
    add = parser.add_argument
    add("folder", metavar="DIR", help="folder where recordings are written")
    between = "seconds between two polls (default: 5)"
    add("--interval", metavar="S", type=seconds, default=5.0, help=between)
    add("--once", action="store_true", help="end when all present recordings have been read")
    add_shared(parser, "--json", text="print one JSON object per line instead of text")


def run(arguments: argparse.Namespace) -> int:
    from allocsim.analysis.watch import Arrivals

    folder: str = arguments.folder
    if not folder or not Path(folder).is_dir():
        raise UsageError(f"{folder!r} is not a folder; expected a folder to watch")
    arrivals = Arrivals(Path(folder))
    try:
        while True:
            for arrived in arrivals.scan(time.time()):
                _report(arrived, as_json=arguments.json)
            if arguments.once and not arrivals.waits:
                return 0
            time.sleep(arguments.interval)
    except KeyboardInterrupt:
        return 0


def _report(arrived: Arrival | Unreadable, *, as_json: bool) -> None:
    from allocsim.analysis.explain import explain, explain_recording
    from allocsim.analysis.watch import Arrival
    from allocsim.report import watch as report

    explained, problem = None, ""
    verdicts: tuple[Verdict, ...] = ()
    if isinstance(arrived, Arrival):
        try:
            if arrived.ooms:
                explained = explain_recording(arrived.recording)
            elif arrived.oom_text:
                verdicts = explain(arrived.oom_text)
        except InvariantError:
            raise
        except AllocsimError as error:
            problem = str(error)
    if as_json:
        write_json(report.document(arrived, explained, verdicts, problem), indent=None)
    else:
        write(report.text(arrived, explained, verdicts, problem))
    sys.stdout.flush()
