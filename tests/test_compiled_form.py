"""The compiled loop is the loop of fast_path.py with C operations."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
LOOP = ROOT / "allocsim" / "core" / "fast_path.py"


@pytest.fixture(scope="module")
def build() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_operation_of_the_table_is_in_the_loop(build: ModuleType) -> None:
    made = build.in_c(LOOP.read_text())
    assert "while advance(rows):" in made
    assert "split_change = 2 if is_split else 16 * rest + 2" in made  # constants of journal.py
    for python in ("del keys[at]", "keys.insert(", "len(keys)", ".append(", "find("):
        at = made.replace("first_not_below(", "").replace("history.append(", "")
        assert python not in at.replace("spare.append(", "").replace("found.insert(", "")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("keys.insert(at, key)", "keys.insert(at, other_key)"),
        ("named.pop(name, None)", "named.pop(name)"),
        ("if kind == BRIEF and", "if kind in (BRIEF, 9) and"),
    ],
)
def test_a_loop_that_the_table_does_not_fit_is_not_built(
    build: ModuleType, old: str, new: str
) -> None:
    """Otherwise the compiled form would use slow Python objects, or another rule."""
    source = LOOP.read_text()
    assert old in source
    with pytest.raises(ValueError, match=r"fast_path\.py has .* times; expected"):
        build.in_c(source.replace(old, new, 1))


def test_the_rules_of_the_loop_are_untouched(build: ModuleType) -> None:
    """Replacements change operations, not rules."""
    marks = [line.strip() for line in LOOP.read_text().splitlines() if "# Rule " in line]
    made = build.in_c(LOOP.read_text())
    assert marks
    assert [line.strip() for line in made.splitlines() if "# Rule " in line] == marks
