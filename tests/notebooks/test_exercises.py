"""The exercises: nothing is given away, right answers are accepted, wrong ones are set right."""

from __future__ import annotations

import contextlib
import io
from functools import cache
from typing import Any

import matplotlib
import pytest

from tests.notebooks.exercises import EXERCISES, Exercise
from tests.notebooks.kernel import FOLDER, NOTEBOOKS, read
from tests.notebooks.outputs import shown

INVITATION = "Fill in your answers, then run this cell again.\n"

each = pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.notebook)


@pytest.fixture(autouse=True)
def _beside_the_notebooks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a kernel: modules in the notebooks' folder can be imported."""
    monkeypatch.syspath_prepend(str(FOLDER))


@cache
def sources(notebook: str) -> dict[str, str]:
    """The code of each cell by its id, without what only IPython understands."""
    (path,) = (path for path in NOTEBOOKS if path.name.startswith(notebook))
    cells = [cell for cell in read(path).cells if cell.cell_type == "code"]
    return {cell.id: cell.source.replace("%matplotlib inline\n", "") for cell in cells}


@cache
def before_the_check(exercise_notebook: str, needs: tuple[str, ...]) -> dict[str, Any]:
    """The names that exist once the cells that the exercise needs have run."""
    names: dict[str, Any] = {}
    quiet = contextlib.redirect_stdout(io.StringIO())
    with contextlib.chdir(FOLDER), matplotlib.rc_context(), quiet:
        for cell in (*needs, "answers"):
            exec(sources(exercise_notebook)[cell], names)  # noqa: S102
    return names


def printed_for(exercise: Exercise, answers: object) -> str:
    """Return the text that the check prints for these answers."""
    names = before_the_check(exercise.notebook, exercise.needs) | {"answers": answers}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(sources(exercise.notebook)["check"], names)  # noqa: S102
    return printed.getvalue()


@each
def test_the_file_invites_to_answer_and_gives_nothing_away(exercise: Exercise) -> None:
    (path,) = (path for path in NOTEBOOKS if path.name.startswith(exercise.notebook))
    cells = {cell.id: cell for cell in read(path).cells}
    assert list(sources(exercise.notebook))[-2:] == ["answers", "check"]
    assert shown(cells["answers"]) == []
    assert shown(cells["check"]) == [("stdout", INVITATION)]


@each
def test_the_answers_to_fill_in_are_those_that_are_checked(exercise: Exercise) -> None:
    answers = before_the_check(exercise.notebook, exercise.needs)["answers"]
    assert answers == dict.fromkeys(exercise.right)
    assert printed_for(exercise, answers) == INVITATION


@each
def test_right_answers_are_accepted(exercise: Exercise) -> None:
    expected = [f"{name}: right" for name in exercise.right]
    assert printed_for(exercise, exercise.right).splitlines() == expected


@each
def test_a_wrong_answer_is_named_with_what_is_right_and_the_rule(exercise: Exercise) -> None:
    name, answer, instead = exercise.wrong
    lines = printed_for(exercise, exercise.right | {name: answer}).splitlines()
    first = lines.index(f"{name}: no, {instead}")
    reasons = [line for line in lines if line.startswith("    ")]
    assert lines[first + 1 : first + 1 + len(reasons)] == reasons
    assert any(exercise.rule in line for line in reasons)
    assert [line for line in lines if line.endswith(": right")] == [
        f"{other}: right" for other in exercise.right if other != name
    ]


@each
def test_nothing_is_told_of_an_answer_that_is_missing(exercise: Exercise) -> None:
    missing = list(exercise.right)[-1]
    lines = printed_for(exercise, exercise.right | {missing: None, "another": 7}).splitlines()
    alone = len(exercise.right) == 1
    assert lines[-1] == (INVITATION.strip() if alone else f"{missing}: not filled in yet")
    assert not any(line.startswith("    ") for line in lines)


@each
def test_show_tells_all_of_them_with_their_rules(exercise: Exercise) -> None:
    lines = printed_for(exercise, "show").splitlines()
    heads = [line for line in lines if not line.startswith("    ")]
    assert [head.partition(": ")[0] for head in heads] == list(exercise.right)
    for head, value in zip(heads, exercise.right.values(), strict=True):
        assert head.partition(": ")[2].replace(",", "") == str(value).replace(",", "")
    assert any(exercise.rule in line for line in lines if line.startswith("    "))


def test_there_is_an_exercise_in_every_notebook() -> None:
    assert [exercise.notebook for exercise in EXERCISES] == [path.name[0] for path in NOTEBOOKS]


def test_what_is_no_table_of_answers_is_taken_as_nothing_filled_in() -> None:
    assert printed_for(EXERCISES[0], None) == INVITATION
