"""The texts of the tree follow the rules of docs/STYLE.md that a program can check."""

from __future__ import annotations

import re
from pathlib import Path

from tests.style import OPENINGS, WORDS, files, violations

STYLE = Path(__file__).parents[1] / "docs" / "STYLE.md"


def test_no_text_breaks_a_rule_of_the_style_guide() -> None:
    assert not [str(found) for path in files() for found in violations(path)]


def test_checker_finds_a_forbidden_opening_and_a_forbidden_word(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text('"""What is told anew."""\n\nx = 1  # it stands in a file\n')
    found = [one.message for one in violations(path)]
    assert any("opens with 'What'" in each for each in found)
    assert {word for each in found for word in WORDS if each.startswith(repr(word))} == {
        "told",
        "anew",
        "stands",
    }


def test_style_guide_names_the_forbidden_openings() -> None:
    named = STYLE.read_text()
    (sentence,) = re.findall(r"Do not begin a docstring with ([^.]*)\.", named)
    for word in re.findall(r"\w+", sentence.replace(" or ", " ")):
        assert OPENINGS.match(word), word
