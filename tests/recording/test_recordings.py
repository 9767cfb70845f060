"""Real recordings that are available beside the project: counts, releases, start states."""

from __future__ import annotations

from pathlib import Path

import pytest

from allocsim.recording import (
    Action,
    Recording,
    find_defects,
    load,
    start_state,
    write_npz,
    write_snapshot,
)

FOLDER = Path(__file__).parents[3] / "shared" / "recordings"
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="needs recordings of other people")

# entries, segments at the end, segments at the start, possible releases
KNOWN = {
    "attention-state-torch2.1": (0, 499, 499, "2.1 2.2"),
    "attention-torch2.6": (97, 9, 0, "2.5 2.6 2.7"),
    "decomfl-torch2.9": (23105, 61, 0, "2.9"),
    "flexgen-oom-state-torch2.0": (1, 176, 176, "2.0"),
    "gpt2-expandable-oom-torch2.15": (26008, 3, 0, "2.14 2.15"),
    "gpt2-ragged-oom-torch2.15": (26064, 84, 0, "2.14 2.15"),
    "gpt2-ragged-torch2.15": (50210, 117, 0, "2.14 2.15"),
    "gpt2-side-stream-torch2.15": (37049, 120, 0, "2.14 2.15"),
    "lm-compiled-torch2.10": (6486, 96, 96, "2.10 2.11"),
    "lm-forward-bf16-torch2.6": (2811, 43, 43, "2.5 2.6 2.7"),
    "lm-forward-fp32-torch2.6": (2043, 29, 29, "2.5 2.6 2.7"),
    "lm-forward-full-card-torch2.6": (8948, 1722, 1722, "2.5 2.6 2.7"),
    "lm-forward-torch2.11": (5163, 216, 216, "2.10 2.11"),
    "lm-training-512-torch2.11": (22332, 400, 399, "2.10 2.11"),
    # Its name says 2.1, but it has time_us and settings, and frames of module.py of 2.4.
    "one-event-torch2.1": (1, 259, 259, "2.3 2.4"),
    "vllm-private-pools-state": (0, 127, 127, "2.5 2.6 2.7 2.8"),
}
STATE_ONLY = {
    "attention-state-torch2.1",
    "flexgen-oom-state-torch2.0",
    "one-event-torch2.1",
    "vllm-private-pools-state",
}


def recording(name: str) -> Recording:
    return load(FOLDER / f"{name}.pickle")


@pytest.mark.parametrize("name", KNOWN)
def test_log_reader_declines_a_recording(name: str) -> None:
    entries, at_end, at_start, releases = KNOWN[name]
    found = recording(name)
    (trace,) = found.devices
    assert (len(trace), len(trace.segments)) == (entries, at_end)
    assert found.releases == tuple(releases.split())
    assert len(start_state(trace)) == at_start
    errors = [finding.text for finding in find_defects(found) if finding.severity == "error"]
    assert bool(errors) == (name in STATE_ONLY)
    assert all("nothing to replay" in text for text in errors)


def test_shared_recordings_are_all_tested() -> None:
    assert {path.stem for path in FOLDER.glob("*.pickle")} == {*KNOWN, "not-a-recording"}


def test_random_data_is_refused_as_binary() -> None:
    first = find_defects(recording("not-a-recording"))[0]
    assert first.severity == "error"
    assert first.text.startswith("the data contradicts itself")


@pytest.mark.parametrize("name", ["decomfl-torch2.9", "gpt2-expandable-oom-torch2.15"])
def test_recording_survives_npz_and_snapshot(name: str, tmp_path: Path) -> None:
    found = recording(name)
    write_npz(found, tmp_path / "a.npz")
    write_snapshot(found, tmp_path / "a.pickle")
    for path in (tmp_path / "a.npz", tmp_path / "a.pickle"):
        again = load(path)
        assert again.releases == found.releases
        assert list(again.device(0)) == list(found.device(0))


def test_oom_is_an_entry() -> None:
    trace = recording("gpt2-ragged-oom-torch2.15").device(0)
    ooms = (trace.action == Action.OOM).nonzero()[0].tolist()
    assert ooms == [26059]


def test_slack_of_blocks_from_before_the_recording() -> None:
    """A block of the recording: 4,194,304 bytes requested, 5,177,344 allocated."""
    state = start_state(recording("lm-training-512-torch2.11").device(0))
    sizes = {(b.requested_size, b.size) for segment in state for b in segment.blocks}
    assert (4_194_304, 5_177_344) in sizes
