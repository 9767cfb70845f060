"""The compiled loop has the steps of fast_path.py, and the build finds what it compiles."""

from __future__ import annotations

import re

import pytest

from tests.compiled_form import CORE, RECORDED, differences

pytestmark = pytest.mark.skipif(
    not (CORE / "_fast_path.pyx").exists(), reason="a wheel has no .pyx files"
)


def plain() -> str:
    return (CORE / "fast_path.py").read_text()


def compiled() -> str:
    return (CORE / "_fast_path.pyx").read_text()


def test_only_operations_on_c_arrays_differ() -> None:
    """After a change of both files: python -m tests.compiled_form, and read the new differences."""
    assert differences(plain(), compiled()) == RECORDED.read_text()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("rounded < oversize or", "rounded <= oversize or"),
        ("split_change -= OWN_STEP", "split_change -= OWN_PLUS"),
        ("kind == BRIEF and", "kind <= BRIEF and"),
        ("named.pop(name, None)", "named.pop(name)"),
    ],
)
def test_a_rule_changed_in_one_file_alone_is_noticed(old: str, new: str) -> None:
    source = plain()
    assert old in source
    assert differences(source.replace(old, new, 1), compiled()) != RECORDED.read_text()


def test_both_files_name_the_same_rules_in_the_same_order() -> None:
    named = [re.findall(r"# Rules? (\d+\.\d+)", source) for source in (plain(), compiled())]
    assert named[0] == named[1] != []


def test_every_module_with_declarations_has_a_source() -> None:
    for path in CORE.glob("*.pxd"):
        assert path.with_suffix(".py").exists() or path.with_suffix(".pyx").exists(), path.name
