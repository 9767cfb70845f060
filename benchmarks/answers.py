"""Whether two checkouts give the same answers: every command on every recording, byte for byte.

    python -m benchmarks.answers OLD [NEW] [--jobs N] [--keep DIR] [--text] [--more] [--file FILE]

OLD and NEW are checkouts (NEW: this one).  Each command runs from each checkout, in that checkout's
own code, on the recordings of this one's `traces/`, or on each FILE.  What it prints, its exit code
and what it writes are compared; how long a search took is not.  --text adds the text forms to the
JSON ones; --keep holds the answers of OLD for the next time, by its commit.  --more lets NEW say
more: keys and notes that OLD has not, and files as it likes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

HOME = Path(__file__).parents[1]

COMMANDS = (
    "replay FILE --strict",
    "replay FILE --cure",
    "replay FILE --conf max_split_size_mb:64",
    "explain FILE",
    "risk FILE",
    "step FILE --at 0 --count 30",
    "step FILE --at 2000 --count 30",
    "tune FILE",
    "tune FILE --try max_split_size_mb:128 --try expandable_segments:True",
)
JSON_ONLY = (
    "report FILE -o OUT.html",
    "plot memory FILE -o OUT.svg",
    "plot segments FILE -o OUT.svg",
)
"""Of these what is written counts, whatever is printed."""

CLOCK = re.compile(r'"seconds": [0-9.e-]+|entries\s+replayed\s+in\s+[0-9.,]+\s+s,\s+[0-9,]+/s')

PLAYER = """
import contextlib, hashlib, io, json, pathlib, sys
from allocsim.cli import main
for line in sys.stdin:
    argv, out = json.loads(line)
    said, erred = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(erred):
        try:
            code = main(argv)
        except SystemExit as end:
            code = end.code
    path = pathlib.Path(out)
    lines = path.read_bytes().splitlines() if path.exists() else []
    told = b"".join(line for line in lines if not line.startswith(b"//"))  # comments of scripts
    written = hashlib.sha256(told).hexdigest() if lines else None
    path.unlink(missing_ok=True)
    print(json.dumps([code, said.getvalue(), erred.getvalue(), written]), flush=True)
"""
"""Runs in a checkout: one command a line."""

Answer = tuple[int, str, str, str | None]


def calls(*, text: bool) -> Iterator[str]:
    """Every command line that is compared."""
    for command in COMMANDS:
        yield f"{command} --json"
        if text:
            yield command
    yield from JSON_ONLY


def answers(tree: Path, file: Path, lines: Sequence[str]) -> dict[str, Answer]:
    """What the code of `tree` says of `file`, by command line."""
    with TemporaryDirectory() as scratch:
        asked = []
        for line in lines:
            suffix = Path(line.split("OUT", 1)[-1]).suffix if "OUT" in line else ".none"
            out = str(Path(scratch) / f"out{suffix}")
            words = [
                str(file) if word == "FILE" else out if word.startswith("OUT") else word
                for word in line.split()
            ]
            asked.append(json.dumps([words, out]))
        environment = {
            **os.environ,
            "PYTHONPATH": str(tree),
            "COLUMNS": "80",
            "MPLBACKEND": "agg",
            "SOURCE_DATE_EPOCH": "0",
        }
        done = subprocess.run(
            [sys.executable, "-c", PLAYER],
            input="\n".join(asked),
            cwd=scratch,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        found = [json.loads(row) for row in done.stdout.splitlines()]
        if len(found) != len(lines):
            raise RuntimeError(f"{tree} on {file}: {done.stderr[-2000:]}")
        cleaned = [
            (code, _timeless(said, scratch), _timeless(erred, scratch), written)
            for code, said, erred, written in found
        ]
    return dict(zip(lines, cleaned, strict=True))


def _timeless(text: str, scratch: str) -> str:
    return CLOCK.sub("TIME", text.replace(scratch, "SCRATCH"))


def kept(tree: Path, file: Path, lines: Sequence[str], folder: Path | None) -> dict[str, Answer]:
    """`answers`, from `folder` if they are there."""
    if folder is None:
        return answers(tree, file, lines)
    commit = subprocess.check_output(["git", "-C", str(tree), "rev-parse", "HEAD"], text=True)
    name = hashlib.sha256("\n".join([commit, str(file), *lines]).encode()).hexdigest()[:24]
    path = folder / f"{file.name}.{name}.json"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(answers(tree, file, lines)))
    return {line: tuple(answer) for line, answer in json.loads(path.read_text()).items()}


def without_more(old: Answer, new: Answer) -> tuple[Answer, Answer]:
    """Both, `new` as far as `old` says anything of it."""
    try:
        before, after = (
            json.loads(answer[1].replace("TIME", '"seconds": 0')) for answer in (old, new)
        )
    except json.JSONDecodeError:
        return old, new
    said = _common(before, after)
    return (old[0], json.dumps(before), old[2], None), (new[0], json.dumps(said), new[2], None)


def _common(old: Any, new: Any, key: str = "") -> Any:
    """`new` without the keys that `old` lacks, and without notes beyond those of `old`."""
    if isinstance(old, dict) and isinstance(new, dict):
        return {name: _common(old[name], new[name], name) for name in old if name in new}
    if not isinstance(old, list) or not isinstance(new, list):
        return new
    if key == "notes":
        return old if set(old) <= set(new) else new
    if len(old) != len(new):
        return new
    return [_common(before, after) for before, after in zip(old, new, strict=True)]


def difference(old: Answer, new: Answer) -> str:
    """The first place where two answers part."""
    for name, mine, other in zip(("exit code", "output", "errors", "file"), old, new, strict=True):
        if mine != other:
            if not (isinstance(mine, str) and isinstance(other, str)) or name == "file":
                return f"{name} {mine} became {other}"
            pairs = zip(mine, other, strict=False)
            at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(mine), len(other)))
            start = max(at - 60, 0)
            return f"{name} at {at}: {mine[start : at + 60]!r} became {other[start : at + 60]!r}"
    return "nothing"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path, nargs="?", default=HOME)
    parser.add_argument("--file", type=Path, action="append", help="a recording; may be repeated")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--text", action="store_true")
    parser.add_argument("--more", action="store_true")
    given = parser.parse_args()
    files = given.file or sorted((HOME / "traces").rglob("*.gz"))
    lines = list(calls(text=given.text))
    asked = [line for line in lines if not (given.more and line in JSON_ONLY)]

    def compare(file: Path) -> list[str]:
        old = kept(given.old.resolve(), file.resolve(), lines, given.keep)
        new = answers(given.new.resolve(), file.resolve(), asked)
        if given.more:
            for line in asked:
                old[line], new[line] = without_more(old[line], new[line])
        return [
            f"{file.name}: allocsim {line}: {difference(old[line], new[line])}"
            for line in asked
            if old[line] != new[line]
        ]

    n_wrong = 0
    with ThreadPoolExecutor(given.jobs) as pool:
        for found in pool.map(compare, files):
            n_wrong += len(found)
            for row in found:
                print(row, flush=True)
    print(f"{len(files)} recordings, {len(asked)} commands each, {n_wrong} answers differ")
    return int(n_wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
