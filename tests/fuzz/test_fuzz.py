"""A short run of the fuzzer finds no fault, and the fuzzer detects the faults it looks for."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allocsim.errors import RecordingError
from tests.fuzz import targets
from tests.fuzz.__main__ import jobs_of, run_batch
from tests.fuzz.mutate import mutated
from tests.fuzz.seeds import seeds
from tests.fuzz.targets import TARGETS


@pytest.mark.parametrize("target", TARGETS)
def test_every_seed_is_sound(target: str) -> None:
    assert all(TARGETS[target](data) for data in seeds(target))


@settings(max_examples=60, deadline=None)
@given(target=st.sampled_from(sorted(TARGETS)), source=st.randoms(use_true_random=False))
def test_no_change_is_more_than_a_refusal(target: str, source: random.Random) -> None:
    TARGETS[target](mutated(source, seeds(target)))


@settings(max_examples=60, deadline=None)
@given(target=st.sampled_from(sorted(TARGETS)), data=st.binary(max_size=300))
def test_bytes_of_no_form_at_all(target: str, data: bytes) -> None:
    TARGETS[target](data)


def test_the_same_seed_is_the_same_input() -> None:
    sound = seeds("recording")
    one, other = random.Random(5), random.Random(5)
    assert [mutated(one, sound) for _ in range(20)] == [mutated(other, sound) for _ in range(20)]


def test_what_is_no_refusal_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> None:
        raise KeyError("x")

    monkeypatch.setattr(targets, "load", broken)
    monkeypatch.setattr("tests.fuzz.__main__._BATCH", 3)
    assert [what for what, _ in run_batch("recording", 0).faults] == [
        "recording: KeyError: 'x'"
    ] * 3


@pytest.mark.parametrize("sentence", ["two\nlines", "\x1b[2J", "long" * 300])
def test_a_sentence_that_no_terminal_can_show_is_a_fault(
    sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(path: object) -> None:
        raise RecordingError(str(path), sentence)

    monkeypatch.setattr(targets, "load", refusing)
    with pytest.raises(AssertionError):
        TARGETS["recording"](b"{}")


def test_every_reader_gets_its_share() -> None:
    found = jobs_of(100_000, 7, None)
    assert {target for target, _ in found} == set(TARGETS)
    assert len({seed for _, seed in found}) == len(found)
    assert jobs_of(4_000, 0, "header") == [("header", 0), ("header", 1)]
