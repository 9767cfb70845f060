"""Exact replays of real recordings: every address, segment and statistic."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from allocsim import load, replay
from allocsim.core import find_split_merge
from allocsim.core.constants import IS_COMPILED
from allocsim.simulation import Run
from allocsim.units import MIB

ROOT = Path(__file__).parents[2]
TRACES = ROOT / "traces"
OUTSIDE = ROOT.parent / "shared" / "recordings"
FIRST_BASE = 123145302310912

OURS = {
    "gpt2-ragged-torch2.15": (16_997, 117, 50_210),
    "gpt2-ragged-oom-torch2.15": (9_105, 84, 26_064),
    "gpt2-side-stream-torch2.15": (12_709, 120, 37_049),
    "gpt2-expandable-oom-torch2.15": (9_105, 3, 26_008),
}
OTHERS = {
    "attention-torch2.6": (36, 9, 97),
    "lm-forward-torch2.11": (1_721, 216, 5_163),
    "lm-forward-fp32-torch2.6": (681, 29, 2_043),
    "lm-forward-bf16-torch2.6": (937, 43, 2_811),
    "lm-compiled-torch2.10": (2_162, 96, 6_486),
    "lm-training-512-torch2.11": (7_591, 400, 22_332),
    "lm-forward-full-card-torch2.6": (4_138, 1_722, 8_948),
    "decomfl-torch2.9": (7_946, 61, 23_105),
}


def assert_exact(run: Run, counts: tuple[int, int, int]) -> None:
    fidelity = run.devices[0].fidelity
    assert fidelity is not None
    assert fidelity.first_mismatch is None
    assert (
        fidelity.addresses_matched,
        fidelity.segments_matched,
        fidelity.entries_matched,
    ) == counts
    assert (fidelity.allocations, fidelity.segments, fidelity.entries) == counts


@pytest.mark.skipif(IS_COMPILED, reason="a compiled module does not see the patched constant")
@pytest.mark.parametrize("name", OURS)
def test_own_recordings_replay_exactly_if_the_heap_renumbers_segments(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(find_split_merge, "NARROW_PLACES", 64 * MIB)
    closed: list[find_split_merge.Heap] = []
    renumber = find_split_merge.Heap._renumber_segments

    def counted(self: find_split_merge.Heap) -> None:
        closed.append(self)
        renumber(self)

    monkeypatch.setattr(find_split_merge.Heap, "_renumber_segments", counted)
    assert_exact(replay(load(TRACES / f"{name}.pickle.gz")), OURS[name])
    assert closed


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("addresses", ["recorded", "bump"])
def test_own_recordings_replay_exactly(name: str, addresses: str) -> None:
    """All segments get their recorded addresses, or only the first segment does."""
    base = None if addresses == "recorded" else FIRST_BASE
    run = replay(load(TRACES / f"{name}.pickle.gz"), addresses=addresses, base_address=base)
    assert_exact(run, OURS[name])
    truth = json.loads((TRACES / f"{name}.json").read_text())
    device = run.devices[0]
    assert device.stats == truth["stats"]
    assert device.peak_allocated_bytes == truth["peak_allocated"]
    assert device.peak_reserved_bytes == truth["peak_reserved"]
    assert [oom.message for oom in device.ooms] == [text for text in [truth.get("oom")] if text]


@pytest.mark.parametrize(
    ("name", "entry"),
    [("gpt2-ragged-oom-torch2.15", 26_059), ("gpt2-expandable-oom-torch2.15", 26_003)],
)
def test_recorded_error_happens_at_its_entry(name: str, entry: int) -> None:
    run = replay(load(TRACES / f"{name}.pickle.gz"))
    assert [oom.entry for oom in run.devices[0].ooms] == [entry]
    truth = json.loads((TRACES / f"{name}.json").read_text())
    assert run.device_memory == truth["device_memory"]


@pytest.mark.parametrize("name", OTHERS)
def test_recordings_of_others_replay_exactly(name: str) -> None:
    path = OUTSIDE / f"{name}.pickle"
    if not path.exists():
        pytest.skip("needs recordings of other people")
    assert_exact(replay(load(path)), OTHERS[name])


def test_wrong_tie_break_is_found() -> None:
    """2.9 breaks ties by address, 2.15 by segment, so they differ on reused addresses."""
    path = OUTSIDE / "decomfl-torch2.9.pickle"
    if not path.exists():
        pytest.skip("needs recordings of other people")
    fidelity = replay(load(path), torch_version="2.15").devices[0].fidelity
    assert fidelity is not None
    assert (fidelity.addresses_matched, fidelity.allocations) == (5_833, 7_946)


def test_invariants_hold_during_a_real_run() -> None:
    run = replay(load(TRACES / "gpt2-ragged-oom-torch2.15.pickle.gz"), check_every=2_000)
    assert run.devices[0].fidelity is not None


def test_recording_cut_in_the_middle_replays_exactly() -> None:
    """The start state at any entry is rebuilt from the end."""
    from dataclasses import replace  # noqa: PLC0415

    from allocsim.recording.start_state import trimmed  # noqa: PLC0415

    for name in ("gpt2-ragged-oom-torch2.15", "gpt2-expandable-oom-torch2.15"):
        recording = load(TRACES / f"{name}.pickle.gz")
        [trace] = recording.devices
        for cut in (101, 15_000):
            rest = replace(recording, devices=(trimmed(trace, cut, len(trace)),))
            fidelity = replay(rest).devices[0].fidelity
            assert fidelity is not None
            assert fidelity.addresses_matched == fidelity.allocations
            assert fidelity.first_mismatch is None
