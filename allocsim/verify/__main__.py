"""`python -m allocsim.verify`: run golden cases on the allocator of a PyTorch release.

A golden case is a list of allocator calls with the stored results of real PyTorch.

Exit codes: 0 for success, 1 if a golden case differs, 2 for wrong input or a missing requirement.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import Counter
from pathlib import Path

from allocsim.core import NEWEST
from allocsim.phantom import PhantomError
from allocsim.verify.comparison import check_case, load_case
from allocsim.verify.real import RealAllocator
from allocsim.verify.script import Script


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _golden(arguments: argparse.Namespace) -> int:
    real = RealAllocator(arguments.torch)
    place: Path = arguments.path
    paths = sorted(place.glob("*.json.gz")) if place.is_dir() else [place]
    verdicts = [check_case(real, load_case(path)) for path in paths]
    for verdict in verdicts:
        if verdict.detail:
            print(f"{verdict.name}: {verdict.outcome}: {verdict.detail}")
    counts = Counter(verdict.outcome for verdict in verdicts)
    judged = counts["equal"] + counts["different"]
    others = ", ".join(f"{counts[o]} {o}" for o in ("refused", "stopped", "ran") if counts[o])
    print(
        f"torch {real.torch_version}: {counts['equal']} of {judged} results equal"
        + (f"; without a result: {others}" if others else "")
    )
    return 1 if counts["different"] else 0


def _time(arguments: argparse.Namespace) -> int:
    real = RealAllocator(arguments.torch)
    script = Script.from_golden(load_case(arguments.path))
    seconds = real.time(script, arguments.repeats)
    middle = statistics.median(seconds)
    rate = len(script.ops) / middle
    print(f"{len(script.ops)} ops, median {middle:.6f} s a pass, {rate:,.0f} ops a second")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m allocsim.verify")
    commands = parser.add_subparsers(required=True, metavar="command")
    golden = commands.add_parser("golden", help="compare golden cases with the real allocator")
    timed = commands.add_parser("time", help="time a golden case's script on the real allocator")
    for command, run in ((golden, _golden), (timed, _time)):
        example = f"such as {NEWEST}"
        command.add_argument("--torch", required=True, metavar="RELEASE", help=example)
        command.set_defaults(run=run)
    golden.add_argument("path", type=Path, help="a case, or a folder of cases")
    timed.add_argument("path", type=Path, help="a case")
    timed.add_argument("--repeats", type=int, default=5)
    return parser


def main(words: list[str] | None = None) -> int:
    arguments = _parser().parse_args(words)
    try:
        code: int = arguments.run(arguments)
        return code
    except PhantomError as error:
        _say(f"allocsim.verify: {error}")
        return 2


if __name__ == "__main__":
    sys.exit(main())
