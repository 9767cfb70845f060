"""Every public name has a docstring and a section on the page of the Python API."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import ModuleType

import pytest

import allocsim
from tests.api import MODULES, PAGE, main, page


def test_the_page_is_written_where_it_is_asked_for(tmp_path: Path) -> None:
    main([str(tmp_path)])
    assert (tmp_path / PAGE).read_text() == page()


NAMES = [
    *((allocsim, name) for name in allocsim.__all__),
    *((module, name) for module in MODULES for name in module.__all__),
]
IDS = [f"{module.__name__}.{name}" for module, name in NAMES]


@pytest.mark.parametrize(("module", "name"), NAMES, ids=IDS)
def test_every_public_name_is_there_and_has_a_section(module: ModuleType, name: str) -> None:
    value = getattr(module, name)
    assert f"\n## {name}\n" in page()
    if callable(value) or isinstance(value, ModuleType):
        doc = inspect.getdoc(value) or ""
        assert len(doc) > 20
        assert not doc.startswith(f"{name}("), "a docstring, not what dataclasses make up"


def test_names_are_looked_up_when_they_are_first_used() -> None:
    assert set(allocsim.__all__) <= set(dir(allocsim))
    with pytest.raises(AttributeError, match="module 'allocsim' has no attribute 'fits'"):
        allocsim.fits  # noqa: B018


@pytest.mark.parametrize("name", ["DeviceRun", "picture_of", "ConfigError", "GIB"])
def test_a_name_of_the_last_release_is_an_alias_that_warns(name: str) -> None:
    (home,) = (module for module in MODULES if name in module.__all__)
    with pytest.warns(DeprecationWarning, match=rf"{name} moved to {home.__name__}"):
        value = getattr(allocsim, name)
    assert value is getattr(home, name)
