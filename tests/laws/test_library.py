"""Choice of the laws for a version of transformers."""

from __future__ import annotations

import pytest

from allocsim.errors import ConfigError
from allocsim.fitting.laws import TRANSFORMERS, library, numbers_of, transformers_release


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
    monkeypatch.setattr(library, "installed_transformers", lambda: "5.24.3")
    assert transformers_release() == "5.24"
    monkeypatch.setattr(library, "installed_transformers", lambda: None)
    assert transformers_release() == TRANSFORMERS[0]


@pytest.mark.parametrize("wrong", ["latest", "5", "5.x", ""])
def test_what_is_no_version_is_refused(wrong: str) -> None:
    with pytest.raises(
        ConfigError, match=r"is not a version of transformers; expected a version such as 5\.24"
    ):
        numbers_of(wrong)


def test_rows_are_in_their_order() -> None:
    assert sorted(TRANSFORMERS, key=numbers_of) == list(TRANSFORMERS)
