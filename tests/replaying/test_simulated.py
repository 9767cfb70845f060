"""Simulated recordings are equal to what real PyTorch wrote.

This holds as recorded, and under other settings for the programs that ran under them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from allocsim.core import CachingAllocator
from allocsim.export import NOT_THE_ALLOCATORS, simulate
from allocsim.recording import Action, Mark, MarkKind, Recording, Trace, load, read_snapshot
from allocsim.recording.export import snapshot_of
from allocsim.replaying import replay
from tests.report.formats.recordings import recordings

TRACES = Path(__file__).parents[2] / "traces"
EVERY = sorted([*TRACES.glob("*.pickle.gz"), *TRACES.glob("*/*.npz.gz")])
SAMPLE = [
    TRACES / "gpt2-expandable-oom-torch2.15.pickle.gz",
    TRACES / "recordings" / "two_streams-default-torch2.15.npz.gz",
    TRACES / "recordings" / "cuda_graphs-drop-torch2.15.npz.gz",
    TRACES / "counted" / "warm_start-torch2.15.npz.gz",
]
SETTINGS = ("expandable", "gc", "max-split", "roundup", "tight")
# Only these make the same requests in the same order; threads of the others race.
STEADY = ("gpt2_training", "greedy_decoding", "llama_checkpointing", "lora_finetuning",
          "resnet_training", "two_streams")  # fmt: skip
MIB = 1 << 20


def plain(recording: Recording) -> Any:
    """Return the content of PyTorch's file, without entries of others."""
    snapshot: Any = snapshot_of(recording)
    snapshot.pop("allocsim", None)
    others = [action.text for action in NOT_THE_ALLOCATORS]
    for entries in snapshot["device_traces"]:
        entries[:] = [entry for entry in entries if entry["action"] not in others]
    return snapshot


def stacks_of(trace: Trace) -> list[Any]:
    return [trace.frame_table.stack(number) for number in trace.frames.tolist()]


def outlines(trace: Trace) -> list[Any]:
    """Return the final segments without their addresses, which depend on the driver."""
    return [
        (
            segment.total_size,
            segment.stream,
            segment.is_small,
            segment.pool_id,
            segment.is_expandable,
            [
                (block.address - segment.address, block.size, block.requested_size, block.state)
                for block in segment.blocks
            ],
        )
        for segment in trace.segments
    ]


def check_recorded(path: Path) -> None:
    recording = load(path)
    made = simulate(recording)
    assert plain(made.recording) == plain(recording)


@pytest.mark.parametrize("path", SAMPLE, ids=lambda path: path.name)
def test_replay_as_recorded_is_the_recording(path: Path) -> None:
    check_recorded(path)


@given(recordings())
@settings(max_examples=25)
def test_random_program_as_recorded_is_its_recording(recording: Recording) -> None:
    if not any(map(len, recording.devices)):
        return
    made = simulate(recording, torch_version=recording.releases[-1])
    (run,) = made.runs[0].devices
    assert run.fidelity is not None
    if run.fidelity.is_exact:
        assert plain(made.recording) == plain(recording)


@given(recordings(), st.sampled_from(["", "expandable_segments:True", "max_split_size_mb:32"]))
@settings(max_examples=25)
def test_what_if_of_a_random_program_replays_exactly(recording: Recording, conf: str) -> None:
    if not any(map(len, recording.devices)):
        return
    made = simulate(recording, conf)
    again = replay(made.recording).devices[0]
    assert again.fidelity is not None
    assert again.fidelity.is_exact, again.fidelity.first_mismatch
    assert again.stats["reserved_bytes.all.peak"] == made.runs[0].devices[0].peak_reserved_bytes


@pytest.mark.slow
@pytest.mark.parametrize("path", EVERY, ids=lambda path: path.name)
def test_every_replay_as_recorded_is_its_recording(path: Path) -> None:
    check_recorded(path)


def check_what_if(program: str, name: str) -> None:
    """Compare a what-if of the default run with the recording of the other run."""
    folder = TRACES / "recordings"
    recording = load(folder / f"{program}-default-torch2.15.npz.gz")
    real = load(folder / f"{program}-{name}-torch2.15.npz.gz")
    assert real.settings is not None
    assert real.provenance is not None
    conf, memory = real.settings.conf, real.provenance.device_memory
    made = simulate(recording, conf, device_memory=memory).recording
    assert made.settings == real.settings
    assert made.releases == real.releases
    found, wanted = made.devices[0], real.devices[0]
    for column in ("action", "size", "stream"):
        assert_array_equal(getattr(found, column), getattr(wanted, column))
    places = [(t.addr - t.addr[0])[t.action != Action.OOM] for t in (found, wanted)]
    assert_array_equal(*places)
    assert stacks_of(found) == stacks_of(wanted)
    assert outlines(found) == outlines(wanted)


@pytest.mark.parametrize("name", ["expandable", "gc"])
def test_what_if_is_the_recording_of_that_run(name: str) -> None:
    check_what_if("gpt2_training", name)


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("program", STEADY)
def test_every_what_if_is_the_recording_of_that_run(program: str, name: str) -> None:
    check_what_if(program, name)


def test_recording_of_a_what_if_replays_exactly() -> None:
    recording = load(TRACES / "gpt2-ragged-torch2.15.pickle.gz")
    conf = "max_split_size_mb:128"
    made = simulate(recording, conf, device_memory=6 << 30)
    again = replay(made.recording)
    run, then = made.runs[0].devices[0], again.devices[0]
    assert then.fidelity is not None
    assert then.fidelity.is_exact
    assert again.conf == conf
    assert then.device_memory == 6 << 30
    assert then.peak_reserved_bytes == run.peak_reserved_bytes
    assert then.stats["num_alloc_retries"] == run.stats["num_alloc_retries"]


def test_unrecorded_error_ends_the_simulated_recording() -> None:
    recording = load(TRACES / "gpt2-ragged-torch2.15.pickle.gz")
    made = simulate(recording, device_memory=5600 * MIB)
    trace, run = made.recording.devices[0], made.runs[0].devices[0]
    assert run.stopped_at is not None
    assert trace.action[-1] == Action.OOM
    assert made.recording.provenance is not None
    assert made.recording.provenance.oom_text == run.ooms[-1].message
    real = load(TRACES / "gpt2-ragged-oom-torch2.15.pickle.gz").devices[0]
    first = int(np.argmax(real.action == Action.OOM))
    assert_array_equal(trace.action, real.action[: first + 1])


def test_row_has_the_time_and_the_stack_of_its_entry() -> None:
    recording = load(TRACES / "gpt2-ragged-torch2.15.pickle.gz")
    made = simulate(recording, "expandable_segments:True")
    found, recorded = made.recording.devices[0], recording.devices[0]
    assert found.time_us is not None
    assert recorded.time_us is not None
    for action in (Action.ALLOC, Action.FREE_REQUESTED):
        rows, entries = found.action == action, recorded.action == action
        assert_array_equal(found.time_us[rows], recorded.time_us[entries])
        assert_array_equal(found.frames[rows], recorded.frames[entries])
    maps = np.flatnonzero(found.action == Action.SEGMENT_MAP)
    assert_array_equal(found.frames[maps], found.frames[maps + 1])


def test_unrecorded_fields_are_absent(written: Any) -> None:
    allocator = CachingAllocator("1GiB", "", "2.1", record_history=True)
    allocator.free(allocator.malloc(3 * MIB))
    allocator.malloc(30 * MIB)
    recording = written(allocator.snapshot())
    made = simulate(recording, torch_version="2.15").recording
    trace = made.devices[0]
    assert trace.time_us is None
    assert not np.any(trace.frames >= 0)
    assert {entry.compile_context for entry in trace} == {"N/A"}
    assert {entry.user_metadata for entry in trace} == {""}
    assert {entry.pool_id for entry in trace} == {(0, 0)}
    assert "2.15" in made.releases


def test_every_device_keeps_its_number() -> None:
    recording = load(TRACES / "recordings" / "greedy_decoding-default-torch2.15.npz.gz")
    snapshot: Any = snapshot_of(recording)
    snapshot["device_traces"] = [[], *snapshot["device_traces"], *snapshot["device_traces"]]
    segments = snapshot["segments"]
    snapshot["segments"] = [segment | {"device": 1} for segment in segments]
    snapshot["segments"] += [segment | {"device": 2} for segment in segments]
    two = read_snapshot("two", snapshot, 1 << 30)
    made = simulate(two, "expandable_segments:True").recording
    assert [trace.device for trace in made.devices] == [1, 2]
    assert made.n_device_traces == 3
    assert len(made.devices[0]) == len(made.devices[1]) > 0


def test_marks_precede_the_rows_of_their_entries() -> None:
    recording = load(TRACES / "counted" / "gpt2-torch2.15.npz.gz")
    recorded = recording.devices[0]
    allocs = np.flatnonzero(recorded.action == Action.ALLOC)
    marks = tuple(Mark(int(allocs[n]), MarkKind.STEP, n) for n in (0, 30, 200))
    recording = replace(recording, devices=(replace(recorded, marks=marks),))
    made = simulate(recording, "expandable_segments:True")
    found = made.recording.devices[0]
    assert [mark.value for mark in found.marks] == [0, 30, 200]
    for mark in found.marks:
        assert np.count_nonzero(found.action[: mark.entry] == Action.ALLOC) == mark.value
        assert found.action[mark.entry] in (Action.ALLOC, Action.SEGMENT_MAP)
