"""`python -m allocsim.phantom fetch`: download the native allocator of a PyTorch release.

Exit codes: 0 for success, 2 for wrong input or a missing tool.
"""

from __future__ import annotations

import argparse
import sys

from allocsim.core import NEWEST
from allocsim.errors import PhantomError
from allocsim.phantom.wheel import fetch_wheel


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m allocsim.phantom")
    commands = parser.add_subparsers(required=True, metavar="command")
    fetch = commands.add_parser("fetch", help="download a release's allocator into the cache")
    fetch.add_argument("--torch", required=True, metavar="RELEASE", help=f"such as {NEWEST}")
    arguments = parser.parse_args(words)
    try:
        wheel = fetch_wheel(arguments.torch, _say)
    except PhantomError as error:
        _say(f"allocsim.phantom: {error}")
        return 2
    print(f"torch {wheel.torch}, CUDA {wheel.cuda}: {wheel.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
