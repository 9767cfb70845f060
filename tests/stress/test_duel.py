"""A few hundred random scripts, core against naive model; `make stress` runs millions of ops."""

from __future__ import annotations

import pytest

from allocsim.core import IS_COMPILED, RELEASES
from allocsim.verify import Script
from allocsim.verify.generator import make_script
from allocsim.verify.script import Op
from tests.stress.__main__ import as_test
from tests.stress.duel import duel, shortest


@pytest.mark.parametrize("in_rows", [False, True], ids=["step by step", "the way of a replay"])
@pytest.mark.parametrize("release", RELEASES)
def test_core_and_naive_model_agree(release: str, in_rows: bool) -> None:
    for seed in range(5):
        script = make_script(seed, RELEASES[release], is_reproducible=False)
        assert duel(script, release, in_rows=in_rows) is None, f"seed {seed}"


@pytest.mark.skipif(IS_COMPILED, reason="a compiled core cannot be changed")
def test_a_divergence_is_found_and_made_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A core that splits off remainders of exactly 1 MiB violates the rules."""
    monkeypatch.setattr("allocsim.core.pool.SMALL_SIZE", (1 << 20) - 1)
    ops: list[Op] = [["a", 1, 100, 0], ["a", 2, 10 << 20, 0], ["f", 2], ["a", 3, 9 << 20, 0], ["e"]]
    script = Script(ops, 1 << 30, "", "bump")
    found = duel(script, "2.15")
    assert found is not None
    short = shortest(script, "2.15")
    assert [op[0] for op in short.ops] == ["a", "f", "a"]
    namespace: dict[str, object] = {}
    exec(as_test(short, "2.15", in_rows=False), namespace)  # noqa: S102
    test = namespace["test_a_divergence_in_2_15"]
    assert callable(test)
    with pytest.raises(AssertionError):
        test()
