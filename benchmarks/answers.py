"""Compare the answers of two checkouts of this repository, for every command and recording.

    python -m benchmarks.answers OLD [NEW] [--jobs N] [--keep DIR] [--text] [--more] [--file FILE]

OLD and NEW are checkouts (default of NEW: this one).  Each command runs with the code of each
checkout, on the recordings in `traces/` of this one, or on each FILE.  Output, exit code and files
are compared byte by byte, except for the time that a search took.

--text compares the text output as well as JSON.  --keep stores the answers of OLD by its commit.
--more ignores keys, notes and tried settings that OLD lacks, and files.  The last lines count the
differences by place.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
from collections import Counter
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
"""Commands whose written files are compared."""

CLOCK = re.compile(
    r'"seconds": [0-9.e-]+|entries\s+replayed\s+in\s+[0-9.,]+\s+s,\s+[0-9,]+/s'
    r"|to\s+the\s+end\s+\([0-9.,]+\s+s\)"
)

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
    code_lines = b"".join(line for line in lines if not line.startswith(b"//"))
    written = hashlib.sha256(code_lines).hexdigest() if lines else None
    path.unlink(missing_ok=True)
    print(json.dumps([code, said.getvalue(), erred.getvalue(), written]), flush=True)
"""
"""Program that runs in a checkout; each line of its input is a command to run."""

Answer = tuple[int, str, str, str | None]


def calls(*, text: bool) -> Iterator[str]:
    """Yield every command line to compare."""
    for command in COMMANDS:
        yield f"{command} --json"
        if text:
            yield command
    yield from JSON_ONLY


def answers(tree: Path, file: Path, lines: Sequence[str]) -> dict[str, Answer]:
    """Run the commands of `tree` on `file`, and return the answers by command line."""
    with TemporaryDirectory() as scratch:
        requests = []
        for line in lines:
            suffix = Path(line.split("OUT", 1)[-1]).suffix if "OUT" in line else ".none"
            out = str(Path(scratch) / f"out{suffix}")
            words = [
                str(file) if word == "FILE" else out if word.startswith("OUT") else word
                for word in line.split()
            ]
            requests.append(json.dumps([words, out]))
        environment = {
            **os.environ,
            "PYTHONPATH": str(tree),
            "COLUMNS": "80",
            "MPLBACKEND": "agg",
            "SOURCE_DATE_EPOCH": "0",
        }
        done = subprocess.run(
            [sys.executable, "-c", PLAYER],
            input="\n".join(requests),
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


def cached_answers(
    tree: Path, file: Path, lines: Sequence[str], folder: Path | None
) -> dict[str, Answer]:
    """Return `answers`; read them from `folder` if stored, else store them there."""
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
    """Return both answers, with `new` reduced to the parts that `old` has too."""
    try:
        before, after = (
            json.loads(answer[1].replace("TIME", '"seconds": 0')) for answer in (old, new)
        )
    except json.JSONDecodeError:
        return old, new
    said = _common(before, after)
    return (old[0], json.dumps(before), old[2], None), (new[0], json.dumps(said), new[2], None)


def _common(old: Any, new: Any, key: str = "") -> Any:
    """Return `new` without the keys, tried settings and notes that `old` lacks."""
    if isinstance(old, dict) and isinstance(new, dict):
        return {name: _common(old[name], new[name], name) for name in old if name in new}
    if not isinstance(old, list) or not isinstance(new, list):
        return new
    if key == "notes":
        return old if set(old) <= set(new) else new
    before, after = _by_setting(old), _by_setting(new)
    if before and after:
        return [_common(each, after[conf]) for conf, each in before.items() if conf in after]
    if len(old) != len(new):
        return new
    return [_common(before, after) for before, after in zip(old, new, strict=True)]


def _by_setting(rows: list[Any]) -> dict[str, Any]:
    """Return the rows of a search by setting; empty if the rows are of another kind."""
    if not all(isinstance(row, dict) and "conf" in row for row in rows):
        return {}
    named = ("conf", "memory_fraction", "kind")
    found = {json.dumps([row.get(name) for name in named]): row for row in rows}
    return found if len(found) == len(rows) else {}


def differences(old: Answer, new: Answer) -> dict[str, str]:
    """Return a text for each difference of two answers, by its place in the JSON."""
    found = {}
    for name, mine, other in zip(("exit code", "output", "errors", "file"), old, new, strict=True):
        if mine == other:
            continue
        try:
            before, after = json.loads(str(mine)), json.loads(str(other))
        except json.JSONDecodeError:
            found[name] = _shown(mine, other)
        else:
            found.update(_differing(before, after, "" if name == "output" else name))
    return found


def _differing(old: Any, new: Any, place: str) -> Iterator[tuple[str, str]]:
    """Yield (place, text) of every difference of two documents; items of a list share a place."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in [*old, *(name for name in new if name not in old)]:
            there = f"{place}.{name}".lstrip(".")
            if name in old and name in new:
                yield from _differing(old[name], new[name], there)
            else:
                yield there, "is gone" if name in old else "is new"
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for before, after in zip(old, new, strict=True):
            yield from _differing(before, after, f"{place}[]")
    elif old != new:
        yield place, _shown(old, new)


def _shown(old: object, new: object) -> str:
    """Return both texts around their first difference."""
    mine, other = str(old), str(new)
    pairs = zip(mine, other, strict=False)
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(mine), len(other)))
    start = max(at - 30, 0)
    return f"{mine[start : at + 60]!r} became {other[start : at + 60]!r}"


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
    compared = [line for line in lines if not (given.more and line in JSON_ONLY)]

    def compare(file: Path) -> list[tuple[str, dict[str, str]]]:
        old = cached_answers(given.old.resolve(), file.resolve(), lines, given.keep)
        new = answers(given.new.resolve(), file.resolve(), compared)
        if given.more:
            for line in compared:
                old[line], new[line] = without_more(old[line], new[line])
        return [
            (line, differences(old[line], new[line])) for line in compared if old[line] != new[line]
        ]

    n_wrong, places = 0, Counter[str]()
    with ThreadPoolExecutor(given.jobs) as pool:
        for file, found in zip(files, pool.map(compare, files), strict=True):
            n_wrong += len(found)
            for line, parts in found:
                places.update(f"{line.split()[0]}: {place}" for place in parts)
                for place, how in parts.items():
                    print(f"{file.name}: allocsim {line}: {place}: {how}", flush=True)
    print(f"{len(files)} recordings, {len(compared)} commands each, {n_wrong} answers differ")
    for place, count in places.most_common():
        print(f"{count:6} {place}")
    return int(n_wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
