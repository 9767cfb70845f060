"""Run the notebooks, and write what they show into them: `python -m tests.notebooks --write`.

Without --write nothing is changed: each cell whose text differs from the file's is printed, and
the exit code is 1 if there is any.
"""

from __future__ import annotations

import argparse

import nbformat

from tests.notebooks.kernel import NOTEBOOKS, executed, read
from tests.notebooks.outputs import differences

__all__ = ["main"]


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.notebooks")
    parser.add_argument("--write", action="store_true", help="put the outputs into the files")
    parser.add_argument("--only", default="", metavar="TEXT", help="in the name of the notebook")
    arguments = parser.parse_args()
    n_different = 0
    for path in (path for path in NOTEBOOKS if arguments.only in path.name):
        ran = executed(path)
        found = list(differences(read(path), ran))
        n_different += len(found)
        print("\n".join([f"{path.name}: {len(found)} cells differ", *found]))
        if arguments.write:
            nbformat.write(ran, path)  # type: ignore[no-untyped-call]
    return 0 if arguments.write else min(n_different, 1)


if __name__ == "__main__":
    raise SystemExit(main())
