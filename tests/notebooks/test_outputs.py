"""Differences between a notebook's file and a run of it."""

from __future__ import annotations

import nbformat
from nbformat import NotebookNode

from tests.notebooks.outputs import differences, shown

Output = dict[str, object]


def printed(text: str, name: str = "stdout") -> Output:
    return {"output_type": "stream", "name": name, "text": text}


def drawn(image: str) -> Output:
    data = {"image/png": image, "text/plain": "<Figure size 850x476 with 1 Axes>"}
    return {"output_type": "display_data", "data": data}


def notebook(*outputs: Output) -> NotebookNode:
    """One of a single cell, named "total", that showed these."""
    cell = {"cell_type": "code", "id": "total", "source": "...", "outputs": list(outputs)}
    made: NotebookNode = nbformat.from_dict({"cells": [cell]})  # type: ignore[no-untyped-call]
    return made


def test_the_same_run_twice_has_no_difference() -> None:
    assert list(differences(notebook(printed("33 MiB\n")), notebook(printed("33 MiB\n")))) == []


def test_one_character_is_a_difference_and_its_cell_is_named() -> None:
    (difference,) = differences(notebook(printed("33 MiB\n")), notebook(printed("34 MiB\n")))
    assert difference.startswith("cell total: ")
    assert "33 MiB" in difference
    assert "34 MiB" in difference


def test_an_image_may_look_different_but_may_not_be_missing() -> None:
    assert list(differences(notebook(drawn("AAAA")), notebook(drawn("BBBB")))) == []
    assert len(list(differences(notebook(drawn("AAAA")), notebook()))) == 1


def test_the_value_of_the_last_line_is_compared_too() -> None:
    value: Output = {"output_type": "execute_result", "data": {"text/plain": "42"}}
    (cell,) = notebook(value).cells
    assert shown(cell) == [("text/plain", "42")]


def test_standard_error_is_told_apart() -> None:
    warned = notebook(printed("33", "stderr"))
    assert len(list(differences(notebook(printed("33")), warned))) == 1
