"""Files of laws: complete, small, read as they were written, and composed into programs."""

from __future__ import annotations

import json
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest

from allocsim.errors import ConfigError
from allocsim.fitting.laws import (
    OPTIMIZERS,
    REQUEST,
    VARIABLES,
    ProgramName,
    find_laws,
    known_laws,
    known_programs,
    numbers_of,
    stored,
)
from benchmarks.laws import parts
from benchmarks.laws.parts import FamilyFile

RECORDED = [name for name in known_programs() if name.work in ("adamw", "serve")]


@pytest.mark.parametrize("name", RECORDED, ids=lambda name: name.text)
def test_every_law_is_whole(name: ProgramName) -> None:
    laws = find_laws(name)
    assert laws is not None
    assert laws
    for law in laws.values():
        is_request = law.kind == REQUEST
        assert (law.number[is_request] < len(law.formulas)).all()
        assert (law.group[is_request] < min(laws.groups.values())).all(), "none is of an optimizer"
        for formula in law.formulas:
            assert formula.at(dict.fromkeys(VARIABLES, 128)) > 0


def test_they_take_less_than_a_megabyte() -> None:
    assert sum(path.stat().st_size for path in stored.DATA.iterdir()) < 1e6


def test_every_recorded_program_trains_with_every_optimizer() -> None:
    known = set(known_laws())
    for name in RECORDED:
        if name.work != "serve":
            assert {name._replace(work=each).text for each in OPTIMIZERS} <= known


@pytest.mark.parametrize("family", ["gpt2_tied", "gemma2_tied"])
def test_what_is_written_is_read(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [name for name in RECORDED if name.family == family]
    before = [find_laws(name) for name in names]
    file = FamilyFile.read(family)
    assert file is not None
    monkeypatch.setattr(stored, "DATA", tmp_path)
    monkeypatch.setattr(parts, "DATA", tmp_path)
    file.write(family)
    for name, laws in zip(names, before, strict=True):
        again = find_laws(name)
        assert laws is not None
        assert again is not None
        assert (again.torch_version, again.parameters) == (laws.torch_version, laws.parameters)
        assert set(again) == set(laws)
        for each, law in laws.items():
            other = again[each]
            assert (law.formulas, law.parts) == (other.formulas, other.parts)
            assert (law.layers, law.period) == (other.layers, other.period)
            for column in ("kind", "number", "by_copy", "by_copies"):
                assert np.array_equal(getattr(law, column), getattr(other, column))
            for one, two in set(zip(law.group.tolist(), other.group.tolist(), strict=True)):
                assert laws.stacks.stack(one) == again.stacks.stack(two)


def test_another_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ZipFile(tmp_path / "gpt2_tied.zip", "w") as file:
        file.writestr("about.json", json.dumps({"format": 4}))
    monkeypatch.setattr(stored, "DATA", tmp_path)
    with pytest.raises(ConfigError, match="has format 4; expected 3"):
        find_laws(ProgramName("gpt2_tied", "bf16", "adamw"))


@pytest.mark.parametrize("wrong", ["latest", "5", "5.x", ""])
def test_what_is_no_version_is_refused(wrong: str) -> None:
    with pytest.raises(
        ConfigError, match=r"is not a version of transformers; expected a version such as 5\.23"
    ):
        numbers_of(wrong)
