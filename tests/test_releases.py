"""A new release of PyTorch needs one row in each table; the failure names a forgotten table.

CONTRIBUTING.md lists, under "Adding a release", the tables and the row of a release without
changes. The test adds these rows to a copy of the package.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from allocsim.analysis.explain import explain
from allocsim.cli.options import expanded
from allocsim.core import RELEASES, CachingAllocator
from allocsim.errors import OutOfMemoryError
from allocsim.phantom.wheel import PUBLISHED
from allocsim.recording.recording import LAYOUTS
from allocsim.units import GIB
from tests.reference import commands

ROOT = Path(__file__).parents[1]
FIRST, *_, NEWEST = RELEASES
NEXT = f"2.{int(NEWEST.split('.')[1]) + 1}"
"""The next release."""
PAGES = (
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    # Ranges in the page of rules end where a rule changed.
    *sorted(set((ROOT / "docs").rglob("*.md")) - {ROOT / "docs" / "concepts" / "semantics.md"}),
)
RANGE = re.compile(rf"\b{re.escape(FIRST)}\s+to\s+(\d+\.\d+)\b")


def helps() -> dict[str, str]:
    """Return the help of --torch of each command that accepts only modelled releases."""
    found = {}
    for name, parser in commands().items():
        for action in parser._actions:
            text = expanded(str(action.help or ""))
            if "--torch" in action.option_strings and RANGE.search(text):
                found[name] = text
    return found


def ignorant(releases: Sequence[str]) -> list[str]:
    """Return the tables and texts that do not have exactly these releases."""
    tables = {
        "allocsim/core/releases.py: CHANGES": list(RELEASES),
        "allocsim/recording/recording.py: LAYOUTS": [
            layout.release for layout in LAYOUTS if layout.release in (*RELEASES, *releases)
        ],
        "allocsim/phantom/wheel.py: PUBLISHED": list(PUBLISHED),
    }
    found = [name for name, known in tables.items() if known != [*releases]]
    found += [
        f"allocsim {command} --help: --torch"
        for command, text in helps().items()
        if RANGE.findall(text) != [releases[-1]]
    ]
    return found


def test_every_table_knows_the_same_releases() -> None:
    assert set(helps()) == {
        "replay",
        "top",
        "compare",
        "gate",
        "lint",
        "ranks",
        "risk",
        "fit",
        "scale",
        "tune",
        "step",
        "plot",
        "report",
        "convert",
        "colocate",
    }
    assert ignorant([*RELEASES]) == []


def test_a_table_that_lacks_a_release_is_named() -> None:
    assert ignorant([*RELEASES, NEXT]) == [
        "allocsim/core/releases.py: CHANGES",
        "allocsim/recording/recording.py: LAYOUTS",
        "allocsim/phantom/wheel.py: PUBLISHED",
        *(f"allocsim {command} --help: --torch" for command in helps()),
    ]


def test_recordings_may_be_older_than_what_is_modelled() -> None:
    older = [layout.release for layout in LAYOUTS if layout.release not in RELEASES]
    assert older == ["2.0"]


def test_pages_name_the_range_that_the_tables_have() -> None:
    wrong = [
        f"{page.relative_to(ROOT)}: {found[0]}, but the newest is {NEWEST}"
        for page in PAGES
        for found in RANGE.finditer(page.read_text())
        if found[1] != NEWEST
    ]
    assert not wrong


def test_trace_and_core_agree_when_sizes_were_unrounded() -> None:
    layouts = {layout.release: layout.is_unrounded for layout in LAYOUTS}
    for version, release in RELEASES.items():
        assert layouts[version] == release.one_division_keeps_size, version


def number(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def test_a_text_is_dated_to_no_release_after_its_own() -> None:
    """A release with unchanged messages needs no row in the table of wordings."""
    dated = []
    for version in RELEASES:
        for conf in ("", "expandable_segments:True"):
            gpu = CachingAllocator(GIB, conf, torch_version=version)
            with pytest.raises(OutOfMemoryError) as caught:
                gpu.malloc(2 * GIB)
            (verdict,) = explain(str(caught.value))
            since = verdict.message.since
            if since is not None:  # 2.3 cuts its text off before the distinctive words
                assert number(since) <= number(version)
                dated.append(version)
    assert set(RELEASES) - set(dated) <= {"2.3"}


# -- release numbers are in tables --------------------------------------------------------

TABLES = {
    "core/releases.py",
    "recording/recording.py",
    "phantom/wheel.py",
    "analysis/explain/message_words.py",
}
NUMBER = re.compile(r"[12]\.\d{1,2}(\.\d)?")


def literals(tree: ast.AST) -> Iterator[tuple[int, object]]:
    """Yield every string of code except docstrings, and every compared or named tuple."""
    prose = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node.lineno, node.value
        sides: list[ast.expr | None] = []
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            sides = [node.value]
        for side in sides:
            if isinstance(side, ast.Tuple):
                yield side.lineno, tuple(getattr(part, "value", None) for part in side.elts)


def is_release(value: object) -> bool:
    if isinstance(value, str):
        return NUMBER.fullmatch(value) is not None
    return isinstance(value, tuple) and len(value) == 2 and value[0] == 2


def test_no_module_but_the_tables_names_or_compares_a_release() -> None:
    wrong = []
    for file in sorted((ROOT / "allocsim").rglob("*.py")):
        name = file.relative_to(ROOT / "allocsim").as_posix()
        if name not in TABLES:
            for line, value in literals(ast.parse(file.read_text())):
                if is_release(value):
                    wrong.append(f"allocsim/{name}:{line} has {value!r}")
    assert not wrong


# -- a new release, as in CONTRIBUTING.md -------------------------------------------------

CONTRIBUTING = ROOT / "CONTRIBUTING.md"
ROW = re.compile(r"^\| `(allocsim/[\w/]+\.py)` \| `(\w+)` \| `(.+)` \|$", re.MULTILINE)


def rows() -> list[tuple[str, str, str]]:
    """Return (file, table, row of the next release) from the guide.

    The guide may still show the release before.
    """
    section = CONTRIBUTING.read_text().partition("## Adding a release")[2].partition("\n## ")[0]
    return [
        (file, table, re.sub(r'"2\.\d+', f'"{NEXT}', row))
        for file, table, row in ROW.findall(section)
    ]


def add_row(path: Path, table: str, row: str) -> None:
    """Append `row` to a table."""
    text = path.read_text()
    start = re.search(rf"^{table}\b.*= [({{]$", text, re.MULTILINE)
    assert start is not None, f"{path} has no table {table}"
    end = re.compile(r"^[)}]$", re.MULTILINE).search(text, start.end())
    assert end is not None
    path.write_text(f"{text[: end.start()]}    {row}\n{text[end.start() :]}")


SCRIPT = """
import contextlib, dataclasses, io, random, re, sys

from allocsim.cli import main
from allocsim.core import NEWEST, RELEASES, find_release, parse_conf
from allocsim.phantom import full_version
from allocsim.verify.generator import RandomSettings
from allocsim.analysis.explain import explain
from allocsim.recording import load, layout_releases, write_snapshot
from tests.test_releases import ignorant

before, new, made, undated = sys.argv[1:]
assert [*RELEASES][-2:] == [before, new]
assert ignorant([*RELEASES]) == []
assert (find_release(f"{new}.0+cu140").version, full_version(new)) == (new, f"{new}.0")
assert layout_releases({"internal_metadata"})[-1] == new
settings = RandomSettings(random.Random(1), find_release(new), has_pools=True)
config = None
for _ in range(50):
    config = parse_conf(settings.make(), find_release(new), config)

def said(*words):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main([*words]) == 0, words
    text = " ".join(out.getvalue().split())
    return re.sub(r'"seconds": [0-9.e-]+|replayed in [0-9.]+ s, [0-9,]+/s', "", text)

def same(*words):
    newer = said(*words, "--torch", new)
    assert newer.replace(new, before) == said(*words, "--torch", before), words
    return newer

said("synth", "oom", "-o", made)
assert f"PyTorch {new}: as recorded" in said("replay", made, "-v")
assert f"PyTorch {new}: the newest release that writes this layout" in said("replay", undated, "-v")
# Nothing in it says which release wrote it, so that either may have.
bare = made.replace("made", "bare")
write_snapshot(dataclasses.replace(load(made), provenance=None), bare)
assert f"PyTorch {new}: as requested" in same("replay", bare, "-v")
same("explain", bare, "--json")
same("risk", bare, "--json")
same("step", bare, "--at", "3", "--count", "3", "--json")
same("tune", bare, "--json", "--try", "max_split_size_mb:64", "--try", "expandable_segments:True")
assert explain("out of memory. Tried to allocate 2.00 MiB", "backend:native", torch_version=new)
main(["replay", "--help"])
"""


def test_a_release_that_changes_nothing_takes_the_rows_of_the_guide(tmp_path: Path) -> None:
    shutil.copytree(
        ROOT / "allocsim", tmp_path / "allocsim", ignore=shutil.ignore_patterns("__pycache__")
    )
    assert [f"{file}: {table}" for file, table, _ in rows()] == ignorant([*RELEASES, NEXT])[:3]
    for file, table, row in rows():
        add_row(tmp_path / file, table, row)
    undated = ROOT / "traces" / "gpt2-ragged-oom-torch2.15.pickle.gz"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, NEWEST, NEXT, str(tmp_path / "made.pickle"), str(undated)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"release of PyTorch, {FIRST} to {NEXT}" in done.stdout
