"""The page of public names equals the docstrings, and every name has one."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import ModuleType

import pytest

import allocsim
from tests.api import PAGE, main, page

DOCS = Path(__file__).parents[1] / "docs"


def test_the_page_is_that_of_the_docstrings() -> None:
    assert (DOCS / PAGE).read_text() == page(), f"docs/{PAGE}: run python -m tests.api docs"


def test_the_page_is_written_where_it_is_asked_for(tmp_path: Path) -> None:
    main([str(tmp_path)])
    assert (tmp_path / PAGE).read_text() == page()


@pytest.mark.parametrize("name", allocsim.__all__)
def test_every_public_name_is_there_and_has_a_section(name: str) -> None:
    value = getattr(allocsim, name)
    assert f"\n## {name}\n" in page()
    if callable(value) or isinstance(value, ModuleType):
        doc = inspect.getdoc(value) or ""
        assert len(doc) > 20
        assert not doc.startswith(f"{name}("), "a docstring, not what dataclasses make up"


def test_names_are_looked_up_when_they_are_first_used() -> None:
    assert set(allocsim.__all__) <= set(dir(allocsim))
    with pytest.raises(AttributeError, match="module 'allocsim' has no attribute 'fits'"):
        allocsim.fits  # noqa: B018
