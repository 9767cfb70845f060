"""The notebooks are true: each runs in a fresh kernel and shows what its file shows.

Those that replay for long are left to `make test-slow`.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from nbformat import NotebookNode

from tests.notebooks.kernel import FOLDER, NOTEBOOKS, executed, read
from tests.notebooks.outputs import differences, shown

MOST_BYTES = 300_000
LONGEST_CELL = 15
OBJECT = re.compile(r"<[^<>]* at 0x[0-9a-f]+>")
"""Default repr of an object, whose address changes between runs."""

PUBLIC = {"allocsim", *(f"allocsim.{name}" for name in ("errors", "plot", "results", "units"))}
PACKAGES = re.compile(r"^\s*(?:from|import)\s+(allocsim[.\w]*)", re.MULTILINE)
QUICK = "136"
"""The first letters of the notebooks that run in a few seconds."""

each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=[] if path.stem[0] in QUICK else [pytest.mark.slow], id=path.stem)
        for path in NOTEBOOKS
    ],
)
def test_a_run_in_a_fresh_kernel_shows_what_the_file_shows(path: Path) -> None:
    assert list(differences(read(path), executed(path))) == []


@each
def test_the_file_is_that_of_one_run_from_first_to_last(path: Path) -> None:
    notebook = read(path)
    counts = [cell.execution_count for cell in code_cells(notebook)]
    assert counts == list(range(1, len(counts) + 1))
    assert notebook.metadata == {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    ids = [cell.id for cell in notebook.cells]
    assert len(set(ids)) == len(ids)


@each
def test_nothing_goes_to_standard_error_and_no_output_names_the_machine(path: Path) -> None:
    for cell in code_cells(read(path)):
        for kind, text in shown(cell):
            assert kind != "stderr", cell.id
            assert "/home/" not in text, cell.id
            assert OBJECT.search(text) is None, cell.id


@each
def test_it_needs_public_names_only(path: Path) -> None:
    code = "\n".join(cell.source for cell in code_cells(read(path)))
    assert set(PACKAGES.findall(code)) <= PUBLIC


@each
def test_it_can_be_read_in_one_sitting(path: Path) -> None:
    notebook = read(path)
    assert 10 <= len(notebook.cells) <= 25
    assert path.stat().st_size < MOST_BYTES
    for cell in code_cells(notebook):
        assert len(cell.source.splitlines()) <= LONGEST_CELL, cell.id


@each
def test_it_is_in_the_table_of_the_folder(path: Path) -> None:
    assert f"({path.name})" in (FOLDER / "README.md").read_text()


def test_all_seven_are_there() -> None:
    assert [path.name[0] for path in NOTEBOOKS] == list("1234567")
