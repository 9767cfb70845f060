"""Column files and rewritten snapshots keep all data of a recording."""

from __future__ import annotations

import dataclasses
import pickletools
from pathlib import Path

import pytest

from allocsim.recording import Recording, load, write_npz, write_snapshot
from allocsim.recording.recording import RELEASES
from allocsim.recording.start_state import trimmed
from tests.recording.history import training_step, write


def assert_same(left: Recording, right: Recording) -> None:
    assert left.layout == right.layout
    assert left.releases == right.releases
    assert left.settings == right.settings
    assert left.annotations == right.annotations
    assert len(left.devices) == len(right.devices)
    for a, b in zip(left.devices, right.devices, strict=True):
        assert list(a) == list(b)
        assert [s.blocks for s in a.segments] == [s.blocks for s in b.segments]
        assert a.columns().keys() == b.columns().keys()


@pytest.mark.parametrize("release", RELEASES)
def test_recording_round_trips_as_npz_and_snapshot(release: str, tmp_path: Path) -> None:
    history = training_step()
    history.oom(1 << 30, 5)
    recording = load(write(history.snapshot(release), tmp_path / "a.pickle"))
    write_npz(recording, tmp_path / "a.npz")
    assert_same(recording, load(tmp_path / "a.npz"))
    write_snapshot(recording, tmp_path / "b.pickle")
    assert_same(recording, load(tmp_path / "b.pickle"))


def test_snapshot_of_a_segment_list_is_a_list(tmp_path: Path) -> None:
    recording = load(write(training_step().state(), tmp_path / "a.pickle"))
    write_snapshot(recording, tmp_path / "b.pickle")
    assert_same(recording, load(tmp_path / "b.pickle"))


def test_written_snapshot_is_plain_values_in_protocol_4(tmp_path: Path) -> None:
    recording = load(write(training_step().snapshot(), tmp_path / "a.pickle"))
    write_snapshot(recording, tmp_path / "b.pickle")
    names = {op.name for op, _, _ in pickletools.genops((tmp_path / "b.pickle").read_bytes())}
    assert not names & {"GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD", "NEWOBJ"}
    first = next(pickletools.genops((tmp_path / "b.pickle").read_bytes()))
    assert first[1] == 4


def test_trimmed_trace_round_trips(tmp_path: Path) -> None:
    recording = load(write(training_step().snapshot(), tmp_path / "a.pickle"))
    part = dataclasses.replace(recording, devices=(trimmed(recording.device(0), 2, 5),))
    write_snapshot(part, tmp_path / "b.pickle")
    again = load(tmp_path / "b.pickle").device(0)
    assert list(again) == list(recording.device(0))[2:5]
    assert len(again.segments) == 2
