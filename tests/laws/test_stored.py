"""Laws are read as they were written, and what the package holds is whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from allocsim.errors import ConfigError
from allocsim.laws import REQUEST, VARIABLES, find_laws, known_laws, stored, write_laws


@pytest.mark.parametrize("name", known_laws())
def test_every_law_is_whole(name: str) -> None:
    laws = find_laws(name)
    assert laws is not None
    assert laws.by_regime
    for law in laws.by_regime.values():
        assert law.proofs >= 2
        is_request = law.kind == REQUEST
        assert (law.number[is_request] < len(law.formulas)).all()
        assert (law.kin[is_request] < len(laws.stacks)).all()
        for formula in law.formulas:
            assert formula.at(dict.fromkeys(VARIABLES, 128)) > 0


def test_they_take_less_than_five_megabytes() -> None:
    """A program some 15 kilobytes: the columns of its regimes lie together."""
    sizes = [path.stat().st_size for path in stored.DATA.iterdir()]
    assert sum(sizes) < 5e6
    assert sum(sizes) / len(sizes) < 25_000


@pytest.mark.parametrize("name", [known_laws()[0], "gemma2_tied_bf16_adamw_eager"])
def test_what_is_written_is_read(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    laws = find_laws(name)
    assert laws is not None
    write_laws(laws, tmp_path)
    monkeypatch.setattr(stored, "DATA", tmp_path)
    again = find_laws(laws.name)
    assert again is not None
    assert again.torch_version == laws.torch_version
    assert again.stacks.stack(3) == laws.stacks.stack(3)
    for regime, law in laws.by_regime.items():
        other = again.by_regime[regime]
        assert (law.formulas, law.parts, law.reset) == (other.formulas, other.parts, other.reset)
        assert (law.layers, law.period) == (other.layers, other.period)
        for column in ("kind", "kin", "number", "by_copy", "by_copies"):
            assert np.array_equal(getattr(law, column), getattr(other, column))


def test_a_later_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez(tmp_path / "gpt2.npz", format=np.array(3))
    monkeypatch.setattr(stored, "DATA", tmp_path)
    with pytest.raises(ConfigError, match="has format 3; expected 2"):
        find_laws("gpt2")
