"""A hundred what-if replays against the programs; `make stress` compares 200,000."""

from __future__ import annotations

from dataclasses import replace

import pytest

from allocsim import replay
from allocsim.core import RELEASES
from tests.stress.what_ifs import Program, differences, make_program, recorded


@pytest.mark.parametrize("release", RELEASES)
def test_a_what_if_is_what_the_program_comes_to(release: str) -> None:
    for seed in range(3):
        for program, asked, difference in differences(seed, RELEASES[release]):
            assert difference is None, f"seed {seed}: {program.conf!r}, {asked}"


@pytest.mark.parametrize(
    "seed",
    [
        612,
        1522,
        2050,
        2100,
        2292,
        6268,
        1010069,
        5012680,
        5032342,
        6000027,
        6508131,
        6614770,
        7403665,
        7610253,
        7700774,
        7719832,
        8509568,
        18069,
    ],
)
def test_programs_whose_recording_was_once_misread(seed: int) -> None:
    """Limits, frees, collected garbage or another release's rules: see tests/replaying."""
    release = list(RELEASES.values())[seed % len(RELEASES)]
    found = [difference for _, _, difference in differences(seed, release)]
    assert found
    assert not any(found)


def test_the_programs_are_not_all_alike() -> None:
    """Some requests are refused, some settings run out, frees are delayed, caches emptied."""
    programs = [make_program(seed, RELEASES["2.15"]) for seed in range(60)]
    letters = {op[0] for program in programs for op in program.ops}
    assert letters == {"a", "f", "r", "s", "S", "e", "m", "c"}
    stats = [replay(recorded(each)).devices[0].stats for each in programs if len(each.ops) > 3]
    assert any(each["num_alloc_retries"] for each in stats)
    assert any(each["num_device_free"] and not each["num_alloc_retries"] for each in stats)


def test_what_a_program_did_not_do_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program frees one block less than its recording shows."""

    def one_free_less(program: Program) -> Program:
        kept = [number for number, op in enumerate(program.ops) if op[0] == "f"][:1]
        ops = tuple(op for number, op in enumerate(program.ops) if number not in kept)
        return replace(program, ops=ops)

    release = RELEASES["2.15"]
    monkeypatch.setattr(
        "tests.stress.what_ifs.recorded", lambda program: recorded(one_free_less(program))
    )
    found = [what for seed in range(5) for _, _, what in differences(seed, release)]
    assert any(what is not None for what in found)


def test_a_program_that_changed_settings_is_replayed_without_its_marks() -> None:
    """Without the settings, the replay differs, and has a segment where the next one was."""
    recording = recorded(make_program(258, RELEASES["2.4"]))
    trace = replace(recording.devices[0], marks=())
    (device,) = replay(replace(recording, provenance=None, devices=(trace,))).devices
    assert device.parting is not None
