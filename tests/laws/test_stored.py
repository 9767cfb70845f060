"""Files of laws: they are read as they were written, complete, and chosen by release."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from allocsim.errors import ConfigError
from allocsim.fitting.laws import (
    REQUEST,
    TRANSFORMERS,
    VARIABLES,
    Laws,
    find_laws,
    known_laws,
    numbers_of,
    stored,
    transformers_release,
    write_laws,
)


@pytest.mark.parametrize("transformers", TRANSFORMERS)
@pytest.mark.parametrize("name", known_laws())
def test_every_law_is_whole(name: str, transformers: str) -> None:
    laws = find_laws(name, transformers)
    assert laws is not None
    assert laws.by_regime
    for law in laws.by_regime.values():
        assert law.proofs >= 2
        is_request = law.kind == REQUEST
        assert (law.number[is_request] < len(law.formulas)).all()
        assert (law.group[is_request] < len(laws.stacks)).all()
        for formula in law.formulas:
            assert formula.at(dict.fromkeys(VARIABLES, 128)) > 0


def test_they_take_less_than_five_megabytes() -> None:
    """A program takes about 15 kilobytes: the columns of its regimes are stored together."""
    sizes = [path.stat().st_size for path in stored.DATA.glob("*/*.npz")]
    assert sum(sizes) < 5e6
    assert sum(sizes) / len(sizes) < 25_000


@pytest.mark.parametrize("name", [known_laws()[0], "gemma2_tied_bf16_adamw_eager"])
def test_what_is_written_is_read(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    laws = find_laws(name)
    assert laws is not None
    monkeypatch.setattr(stored, "DATA", tmp_path)
    write_laws(laws)
    again = find_laws(laws.name)
    assert again is not None
    assert again.torch_version == laws.torch_version
    assert again.stacks.stack(3) == laws.stacks.stack(3)
    for regime, law in laws.by_regime.items():
        other = again.by_regime[regime]
        assert (law.formulas, law.parts, law.reset) == (other.formulas, other.parts, other.reset)
        assert (law.layers, law.period) == (other.layers, other.period)
        for column in ("kind", "group", "number", "by_copy", "by_copies"):
            assert np.array_equal(getattr(law, column), getattr(other, column))


@pytest.fixture
def laws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Laws:
    """Return the laws of one program, and use an empty folder for files of laws."""
    found = find_laws("gpt2_tied_bf16_adamw")
    assert found is not None
    monkeypatch.setattr(stored, "DATA", tmp_path)
    return found


def test_a_release_without_a_file_asks_as_the_one_before(laws: Laws) -> None:
    first, second = TRANSFORMERS
    path = write_laws(laws)
    assert path.parent.name == f"transformers-{first}"
    unchanged = find_laws(laws.name, second)
    assert unchanged is not None
    assert unchanged.transformers == second
    regime = next(iter(laws.by_regime))
    write_laws(replace(unchanged, by_regime={regime: laws.by_regime[regime]}))
    before, after = find_laws(laws.name, first), find_laws(laws.name, second)
    assert before is not None
    assert after is not None
    assert list(before.by_regime) == list(laws.by_regime)
    assert list(after.by_regime) == [regime]
    assert known_laws() == (laws.name,)


def test_laws_that_a_release_refuted_and_none_replaced_are_none_there(laws: Laws) -> None:
    write_laws(laws)
    write_laws(replace(laws, transformers=TRANSFORMERS[1], by_regime={}))
    assert find_laws(laws.name, TRANSFORMERS[0]) is not None
    assert find_laws(laws.name, TRANSFORMERS[1]) is None


def test_a_later_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / f"transformers-{TRANSFORMERS[0]}"
    folder.mkdir()
    np.savez(folder / "gpt2.npz", format=np.array(3))
    monkeypatch.setattr(stored, "DATA", tmp_path)
    with pytest.raises(ConfigError, match="has format 3; expected 2"):
        find_laws("gpt2")


@pytest.mark.parametrize(
    ("meant", "release"),
    [
        ("5.23", "5.23"),
        ("5.23.4", "5.23"),
        ("5.24.0", "5.24"),
        ("5.24.0.dev0", "5.24"),
        ("5.100.1", "5.24"),  # newer than any row, not between 5.1 and 5.2
        ("6.0", "5.24"),
        ("4.57.6", "5.23"),
    ],
)
def test_a_version_means_the_last_release_before_it(meant: str, release: str) -> None:
    assert transformers_release(meant) == release


def test_where_none_is_meant_it_is_the_one_installed_else_that_of_the_first_laws(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stored, "installed_transformers", lambda: "5.24.3")
    assert transformers_release() == "5.24"
    monkeypatch.setattr(stored, "installed_transformers", lambda: None)
    assert transformers_release() == TRANSFORMERS[0]


@pytest.mark.parametrize("wrong", ["latest", "5", "5.x", ""])
def test_what_is_no_version_is_refused(wrong: str) -> None:
    with pytest.raises(
        ConfigError, match=r"is not a version of transformers; expected a version such as 5\.24"
    ):
        numbers_of(wrong)


def test_rows_are_in_their_order() -> None:
    assert sorted(TRANSFORMERS, key=numbers_of) == list(TRANSFORMERS)
