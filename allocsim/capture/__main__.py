"""python -m allocsim.capture run.pickle -- PROGRAM ...: capture an unmodified program.

The program replaces this process (exec), so output, signals and exit code are the program's own.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from allocsim.capture import PREFIX

HOOK = Path(__file__).parent / "hook"


def main(arguments: Sequence[str]) -> int:
    """Parse the command line and replace this process by the program (exec).

    Return the exit code 2 if the program does not exist; otherwise do not return.
    """
    parser = argparse.ArgumentParser(prog="python -m allocsim.capture", description=__doc__)
    parser.add_argument("path", help="file or folder for captures")
    parser.add_argument("--on", help="oom, exit, step, or several separated by commas")
    parser.add_argument("--steps", help="steps to write, for programs that report steps")
    parser.add_argument("--max-entries", help="capacity of each device's ring of entries")
    parser.add_argument("--stacks", help="python, all or none")
    parser.add_argument("--max-disk", help="largest total size of all files, such as 4GiB")
    parser.add_argument("program", nargs="+", help="command to run, after --")
    given = vars(parser.parse_args(arguments))
    program, path = given.pop("program"), given.pop("path")
    place = shutil.which(program[0])
    if place is None:
        if sys.stderr is not None:
            print(f"{program[0]!r} is no command; expected a program to run", file=sys.stderr)
        return 2
    places = filter(None, (str(HOOK), os.environ.get("PYTHONPATH")))
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(places))
    environment[PREFIX] = str(Path.cwd() / path) + ("/" if path.endswith("/") else "")
    for name, value in given.items():
        if value is not None:
            environment[f"{PREFIX}_{name.upper()}"] = value
    if sys.stdout is not None:
        sys.stdout.flush()
    return os.execve(place, program, environment)  # noqa: S606


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
