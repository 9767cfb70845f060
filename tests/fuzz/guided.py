"""Runs the readers with atheris, which keeps inputs that reach new code and changes them further.

    python -m tests.fuzz.guided --inputs 20000 --target recording --keep FOLDER

Needs `pip install --group fuzz`.  A fault is written to the working directory as crash-*, oom-*
or timeout-* (beyond `limits.py`), and the exit code is then not 0.  atheris itself uses about
20 KiB per input, which counts towards the limit: start a new process every 20,000 inputs (--keep).
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
from collections.abc import Callable
from itertools import count
from pathlib import Path

import atheris  # type: ignore[import-untyped, import-not-found, unused-ignore]

from tests.fuzz.limits import MEMORY, SECONDS

# Instrumented modules must not have been imported before.
with atheris.instrument_imports(include=["allocsim"]):
    from tests.fuzz.seeds import seeds
    from tests.fuzz.targets import TARGETS, Target

_LIMITS = (
    "-max_len=8192",
    f"-timeout={SECONDS}",
    f"-rss_limit_mb={MEMORY >> 20}",
    "-print_final_stats=1",
)


def _alone(read: Target) -> Callable[[bytes], None]:
    """Wrap `read` so that memory left by earlier inputs does not count towards the limit."""
    inputs = count()

    def one(data: bytes) -> None:
        read(data)
        if next(inputs) % 100 == 0:
            gc.collect()

    return one


def main() -> None:
    """Run the command line; libFuzzer ends the process."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.guided", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--inputs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--target", choices=TARGETS, default="recording")
    parser.add_argument("--keep", help="a folder for the inputs found, to go on from another time")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or temporary
        for number, data in enumerate(seeds(arguments.target)):
            Path(folder, str(number)).write_bytes(data)
        runs = [f"-runs={arguments.inputs}", f"-seed={arguments.seed}"]
        atheris.Setup([sys.argv[0], folder, *runs, *_LIMITS], _alone(TARGETS[arguments.target]))
        atheris.Fuzz()


if __name__ == "__main__":
    main()
