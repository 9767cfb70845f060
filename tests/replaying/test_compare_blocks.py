"""Blocks of a recording are compared for overlaps, unless an exact replay makes it needless."""

from __future__ import annotations

import sys

import pytest

from allocsim import replay
from allocsim.errors import RecordingError
from allocsim.recording import Recording
from allocsim.recording.load import read_snapshot
from allocsim.replaying import prepare
from tests.recording.history import BASE, training_step

OVER = "4000 bytes are allocated at .*, over the block at"


def overlapping() -> Recording:
    history = training_step()
    history.alloc(4000)
    history.entries[-1]["addr"] -= 512
    history.segments[BASE][2][1][0] -= 512
    history.segments[BASE][2][0][1] -= 512
    history.segments[BASE][2][1][1] += 512
    return read_snapshot("x", history.snapshot(), 1 << 20)


@pytest.mark.parametrize("conf", [None, "max_split_size_mb:20", "expandable_segments:True"])
def test_replay_refuses_overlapping_blocks_at_each_call(conf: str | None) -> None:
    recording = overlapping()
    for _ in range(2):
        with pytest.raises(RecordingError, match=OVER) as caught:
            replay(recording, conf)
        assert caught.value.entry == 8


def test_prepare_refuses_overlapping_blocks_after_a_replay_did() -> None:
    recording = overlapping()
    with pytest.raises(RecordingError, match=OVER):
        replay(recording)
    with pytest.raises(RecordingError, match=OVER):
        prepare(recording)


def test_exact_replay_does_not_compare_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    recording = read_snapshot("x", training_step().snapshot(), 1 << 20)
    compared: list[Recording] = []
    module = sys.modules["allocsim.replaying.prepare"]
    monkeypatch.setattr(module, "refuse_overlaps", lambda which, _: compared.append(which))
    assert replay(recording).devices[0].parting is None
    assert not compared
    replay(recording, "expandable_segments:True")
    assert compared == [recording]
