"""Synthetic recordings show the behaviour that they are named after, and replay exactly."""

from __future__ import annotations

import inspect
from pathlib import Path

import numpy as np
import pytest

from allocsim.cli.synth import SYNTH_KINDS
from allocsim.recording import RELEASES, Action, Recording, find_defects, load
from allocsim.replaying import replay
from allocsim.units import MIB
from allocsim.workload import KINDS, oom, training, write_recording

CONFS = ("", "expandable_segments:True", "max_split_size_mb:32", "roundup_power2_divisions:4")
SMALL = {"training": {"layers": 2, "steps": 2}, "server": {"requests": 10}}


def small(kind: str, conf: str = "") -> Recording:
    return KINDS[kind](conf=conf, **SMALL.get(kind, {}))


@pytest.mark.parametrize("conf", CONFS)
@pytest.mark.parametrize("kind", KINDS)
def test_recording_of_every_kind_replays_exactly(kind: str, conf: str) -> None:
    recording = small(kind, conf)
    assert not [finding for finding in find_defects(recording) if finding.severity == "error"]
    fidelity = replay(recording).devices[0].fidelity
    assert fidelity is not None
    assert (fidelity.is_exact, fidelity.first_mismatch) == (True, None)
    assert fidelity.entries == len(recording.devices[0])


@pytest.mark.parametrize("suffix", [".pickle", ".pickle.gz", ".npz"])
def test_write_recording_gives_equal_recordings_in_every_format(
    suffix: str, tmp_path: Path
) -> None:
    recording = small("graphs")
    path = tmp_path / f"graphs{suffix}"
    write_recording(recording, path)
    again = load(path)
    written, read = recording.devices[0], again.devices[0]
    for name in ("action", "addr", "size", "stream"):
        assert np.array_equal(getattr(written, name), getattr(read, name))
    assert read.segments == written.segments
    assert [read[i].frames for i in (0, 50, 400)] == [written[i].frames for i in (0, 50, 400)]
    assert [read[i].pool_id for i in (0, 50, 400)] == [(0, 1), (0, 2), (0, 0)]
    assert again.provenance == recording.provenance
    assert again.releases == RELEASES[RELEASES.index("2.14") :]


def test_synthetic_programs_of_equal_seeds_are_equal(tmp_path: Path) -> None:
    for name in ("one.pickle.gz", "two.pickle.gz"):
        write_recording(training(layers=1, steps=1, ragged=True, seed=7), tmp_path / name)
    one, two = ((tmp_path / f"{name}.pickle.gz").read_bytes() for name in ("one", "two"))
    assert one == two
    other = training(layers=1, steps=1, ragged=True, seed=8)
    assert not np.array_equal(
        other.devices[0].size, load(tmp_path / "one.pickle.gz").devices[0].size
    )


def test_write_recording_refuses_another_suffix(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"ends in none of \.pickle, "):
        write_recording(oom(), tmp_path / "oom.csv")


def test_oom_program_has_ten_calls_and_33_mib_unused() -> None:
    recording = oom()
    trace = recording.devices[0]
    assert trace.count(Action.ALLOC) + trace.count(Action.FREE_REQUESTED) + 1 == 10
    assert trace[len(trace) - 1].action is Action.OOM
    run = replay(recording).devices[0]
    (error,) = run.ooms
    assert (error.tried_bytes, error.free_bytes) == (12 * MIB, 0)
    assert error.reserved_bytes - error.allocated_bytes == 33 * MIB
    assert recording.provenance is not None
    assert recording.provenance.oom_text == error.message
    sizes = [b.size for s in trace.segments for b in s.blocks if b.state == "inactive"]
    assert max(sizes) == 9 * MIB


def test_ragged_loop_reserves_more_than_a_regular_one() -> None:
    regular, ragged = training(), training(ragged=True)
    last_half = regular.devices[0].action[len(regular.devices[0]) // 2 :]
    assert Action.SEGMENT_ALLOC not in last_half
    idle = [replay(r).devices[0].peak.idle for r in (regular, ragged)]
    assert idle[1] > 1.4 * idle[0]


def test_lagging_side_stream_multiplies_the_memory() -> None:
    run = replay(KINDS["streams"](lag=6)).devices[0]
    assert run.peak_reserved_bytes > 4 * run.peak_allocated_bytes


def test_deleted_graph_releases_its_memory_and_a_kept_one_does_not() -> None:
    pools = {segment.pool_id for segment in small("graphs").devices[0].segments}
    assert pools == {(0, 2), (0, 4)}


def test_program_too_large_for_its_device_ends_with_an_oom() -> None:
    recording = training(device_memory="1GiB")
    trace = recording.devices[0]
    assert trace[len(trace) - 1].action is Action.OOM
    assert recording.provenance is not None
    assert recording.provenance.oom_text.startswith("CUDA out of memory. Tried to allocate ")


def test_synthetic_program_has_the_requested_number_of_entries() -> None:
    n_entries = len(training(layers=2, entries=20_000).devices[0])
    assert 20_000 <= n_entries < 20_400


def test_blocks_have_the_stack_of_their_request() -> None:
    trace = oom().devices[0]
    block = trace.segments[0].blocks[1]
    assert [frame.name for frame in trace.frame_table.stack(block.frames)] == ["make"]
    assert trace[len(trace) - 1].frames[0].name == "want_more"


@pytest.mark.parametrize("kind", KINDS)
def test_synth_command_has_the_options_of_the_function(kind: str) -> None:
    parameters = inspect.signature(KINDS[kind]).parameters
    written = {name: default for name, default, _ in SYNTH_KINDS[kind].options}
    common = {"seed", "device_memory", "conf"}
    assert {n: p.default for n, p in parameters.items() if n not in common} == written
