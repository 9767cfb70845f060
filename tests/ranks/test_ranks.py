"""Ranks of a job: found by name, replayed in parallel, invalid files reported."""

from __future__ import annotations

import os
import pickle
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from allocsim import CachingAllocator, OutOfMemoryError, load, ranks, replay, risk
from allocsim.analysis.ranks import RankRun, found_in, rank_in_name, run_of
from allocsim.cli import main
from allocsim.errors import ConfigError, RecordingError
from allocsim.units import MIB
from tests.pythons import NEEDS_TORCH, PYTHONS

TRACES = Path(__file__).parents[2] / "traces"


def write(path: Path, *sizes: int, rank: str = "", memory: str = "8GiB") -> None:
    """Write a rank that requests these MiB in order and frees every other block."""
    gpu = CachingAllocator(memory, record_history=True)
    blocks = [gpu.malloc(size * MIB) for size in sizes]
    for block in blocks[::2]:
        gpu.free(block)
    snapshot = gpu.snapshot()
    if rank:
        snapshot["allocsim"] = {"rank": rank}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(snapshot, protocol=4))


@pytest.mark.parametrize(
    ("path", "rank"),
    [
        ("rank3_snapshot.pickle", 3),
        ("snapshot_rank_12.pickle.gz", 12),
        ("dump/iteration_10/rank7_memory_snapshot.pickle", 7),
        ("job/global_rank-5/memory.pickle", 5),
        ("host1_r4.pickle", 4),
        ("mem_snapshot_2024_rank0.pickle", 0),
        ("shrank3.pickle", None),
        ("snapshot_3.pickle", None),
    ],
)
def test_rank_is_read_from_file_names_of_launchers(path: str, rank: int | None) -> None:
    assert rank_in_name(path) == rank


def test_the_one_number_in_which_names_differ_is_the_rank(tmp_path: Path) -> None:
    for number in (0, 1, 10, 2):
        write(tmp_path / "step100" / f"snapshot_{number}.pickle", 2)
    found = found_in([str(tmp_path)])
    assert {Path(path).name: rank for path, rank in found.items()} == {
        f"snapshot_{number}.pickle": number for number in (0, 1, 2, 10)
    }


def test_ranks_decides_by_the_most_reserved_memory(tmp_path: Path) -> None:
    for rank, size in enumerate((40, 60, 50)):
        write(tmp_path / f"rank{rank}.pickle", size, 10)
    found = ranks([str(tmp_path)])
    assert [run.rank for run in found.runs] == [0, 1, 2]
    assert (found.decides.rank, found.least.rank) == (1, 0)
    assert found.median_bytes == next(run for run in found.runs if run.rank == 2).reserved_bytes
    assert found.imbalance == pytest.approx(70 / 60)
    assert found.notes == ()
    assert "3 ranks; rank 1 decides: 70.00 MiB reserved at the peak" in repr(found)


def test_ranks_figures_equal_a_replay_of_each_file(tmp_path: Path) -> None:
    names = ("batch2", "batch3", "layers2")
    for rank, name in enumerate(names):
        (tmp_path / f"rank{rank}.npz.gz").symlink_to(TRACES / "sized" / f"{name}.npz.gz")
    found = ranks([str(tmp_path)], jobs=2)
    for run, name in zip(found.runs, names, strict=True):
        (device_run,) = replay(load(TRACES / "sized" / f"{name}.npz.gz")).devices
        assert run.reserved_bytes == device_run.peak_reserved_bytes
        assert run.allocated_bytes == device_run.peak_allocated_bytes
        assert run.is_as_recorded
    assert found == ranks([str(tmp_path)], jobs=1), "in one process or in two"


def test_rank_stored_in_a_file_has_precedence_over_its_name(tmp_path: Path) -> None:
    write(tmp_path / "rank0.pickle", 2, rank="7")
    write(tmp_path / "rank1.pickle", 2)
    assert [run.rank for run in ranks([str(tmp_path)]).runs] == [1, 7]


def test_ranks_without_any_rank_are_numbered_and_noted(tmp_path: Path) -> None:
    for name in ("first.pickle", "second.pickle"):
        write(tmp_path / name, 2)
    found = ranks([str(tmp_path)])
    assert [run.rank for run in found.runs] == [0, 1]
    assert "numbered by name" in found.notes[0]


def test_ranks_names_unreadable_files_and_replays_the_others(tmp_path: Path) -> None:
    for rank in (0, 2):
        write(tmp_path / f"rank{rank}.pickle", 2)
    (tmp_path / "rank1.pickle").write_bytes(b"half a file")
    found = ranks([str(tmp_path)], jobs=2)
    assert [run.rank for run in found.runs] == [0, 2]
    (refused,) = found.refused
    assert refused.path.endswith("rank1.pickle")
    assert "rank1.pickle" in refused.error
    with pytest.raises(RecordingError, match="no recording can be read"):
        ranks([str(tmp_path / "rank1.pickle")])


def killed(path: str, *asked: str | None, smallest: bool) -> RankRun:
    """Kill the process at one file, as the system does for lack of memory."""
    if "rank1" in path:
        os.kill(os.getpid(), signal.SIGKILL)
    return run_of(path, *asked, smallest=smallest)


def test_any_executor_gives_the_same_and_names_what_a_worker_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in range(3):
        write(tmp_path / f"rank{rank}.pickle", 20 + rank)
    result: list[tuple[int, int]] = []
    with ThreadPoolExecutor(2) as pool:
        far = ranks([str(tmp_path)], executor=pool, watch=lambda *now: result.append(now))
        assert far == ranks([str(tmp_path)], jobs=1)
        assert result == [(1, 3), (2, 3), (3, 3)]
        monkeypatch.setattr(sys.modules["allocsim.analysis.ranks"], "run_of", lost)
        (refused,) = ranks([str(tmp_path)], executor=pool).refused
    assert refused.path.endswith("rank1.pickle")
    assert "the worker that read it was lost (left the cluster)" in refused.error


def lost(path: str, *asked: str | None, smallest: bool) -> RankRun:
    """Raise the error of a cluster whose worker disappeared."""
    if "rank1" in path:
        raise RuntimeError("left the cluster")
    return run_of(path, *asked, smallest=smallest)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_cluster_gives_what_one_process_gives(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    for rank in range(6):
        write(tmp_path / f"rank{rank}.pickle", 20 + rank)
    cluster = distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None, processes=True
    )
    with cluster, distributed.Client(cluster) as client:
        assert ranks([str(tmp_path)], executor=client.get_executor()) == ranks([str(tmp_path)])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a stand-in reaches forked processes only")
def test_a_process_that_is_killed_takes_no_other_file_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in range(4):
        write(tmp_path / f"rank{rank}.pickle", 2)
    monkeypatch.setattr(sys.modules["allocsim.analysis.ranks"], "run_of", killed)
    found = ranks([str(tmp_path)], jobs=2)
    assert [run.rank for run in found.runs] == [0, 2, 3]
    assert "was killed" in found.refused[0].error


def test_two_files_of_one_rank_are_refused(tmp_path: Path) -> None:
    for folder in "ab":
        write(tmp_path / folder / "rank0.pickle", 2)
    with pytest.raises(RecordingError, match="has rank 0, as has"):
        ranks([str(tmp_path)])


def test_ranks_that_ran_out_of_memory_and_settings_for_all(tmp_path: Path) -> None:
    write(tmp_path / "rank0.pickle", 20)
    gpu = CachingAllocator("100MiB", record_history=True)
    kept = [gpu.malloc(20 * MIB) for _ in range(4)]
    gpu.free(kept[0])
    gpu.free(kept[2])
    with pytest.raises(OutOfMemoryError):
        gpu.malloc(70 * MIB)
    (tmp_path / "rank1.pickle").write_bytes(pickle.dumps(gpu.snapshot(), protocol=4))
    found = ranks([str(tmp_path)])
    assert [run.rank for run in found.failed] == [1]
    assert found.conf is None
    under = ranks([str(tmp_path)], conf="expandable_segments:True")
    assert under.conf == "expandable_segments:True"
    assert all(run.is_as_recorded is None for run in under.runs)
    with pytest.raises(RecordingError, match="no recording can be read"):
        ranks([str(tmp_path)], conf="no_such_option:1")


def test_smallest_device_of_a_job_is_that_of_its_largest_rank(tmp_path: Path) -> None:
    for rank, size in enumerate((40, 60)):
        write(tmp_path / f"rank{rank}.pickle", size, 10)
    found = ranks([str(tmp_path)], smallest=True)
    needs = [risk(load(run.path), confs=()).needs[0].capacity for run in found.runs]
    assert [run.smallest_device for run in found.runs] == [
        capacity and capacity.device_memory for capacity in needs
    ]
    assert found.smallest_device == found.runs[1].smallest_device
    assert ranks([str(tmp_path)]).smallest_device is None


@NEEDS_TORCH
@pytest.mark.slow
def test_ranks_of_a_simulated_sharded_job_are_compared(tmp_path: Path) -> None:
    for rank in range(8):
        asked = f"fit gpt2 --gpu A100-80GB --batch 1 --seq 256 --fsdp --ranks 8 --rank {rank}"
        out = tmp_path / f"rank{rank}.pickle"
        assert main([*asked.split(), "--python", PYTHONS[0], "--out", str(out)]) == 0
    found = ranks([str(tmp_path)], jobs=2)
    assert [run.rank for run in found.runs] == list(range(8))
    assert all(run.is_as_recorded for run in found.runs)
    # gpt2's 50,257 words do not divide by 8, and the last rank has seven of them less.
    assert found.allocated_imbalance < 1.001
    assert found.imbalance < 1.05


def test_ranks_lists_states_beside_recordings(tmp_path: Path) -> None:
    gpu = CachingAllocator("8GiB")
    gpu.malloc(30 * MIB)
    snapshot = gpu.snapshot() | {"device_traces": [[]]}
    (tmp_path / "rank0.pickle").write_bytes(pickle.dumps(snapshot, protocol=4))
    write(tmp_path / "rank1.pickle", 2)
    found = ranks([str(tmp_path)])
    assert found.runs[0].is_state
    assert found.runs[0].retries is None
    assert "hold only a state" in found.notes[0]


def test_a_folder_without_recordings_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="the folder holds no recording"):
        ranks([str(tmp_path)])


def test_a_release_that_is_not_modelled_is_refused_by_every_file(tmp_path: Path) -> None:
    write(tmp_path / "rank0.pickle", 2)
    with pytest.raises((ConfigError, RecordingError), match=r"1\.0"):
        ranks([str(tmp_path)], torch_version="1.0")


def write_run(path: Path, *, version: str = "", start_us: int | None = None) -> None:
    """Write a recording of a few entries that begins at `start_us`."""
    write(path, 2)
    snapshot = pickle.loads(path.read_bytes())
    if version:
        snapshot["allocsim"] = {"torch_version": version}
    for number, entry in enumerate(snapshot["device_traces"][0]):
        if start_us is not None:
            entry["time_us"] = start_us + number
    path.write_bytes(pickle.dumps(snapshot, protocol=4))


def test_files_of_two_releases_are_refused_unless_mixed(tmp_path: Path) -> None:
    write_run(tmp_path / "rank0.pickle", version="2.11.0")
    write_run(tmp_path / "rank1.pickle", version="2.15.0")
    with pytest.raises(RecordingError, match=r"by PyTorch 2\.15, and .*rank0.* by PyTorch 2\.11"):
        ranks([str(tmp_path)])
    assert len(ranks([str(tmp_path)], mixed=True).runs) == 2


def test_files_recorded_hours_apart_are_refused_unless_mixed(tmp_path: Path) -> None:
    hour = 3600 * 1_000_000
    for rank, start in enumerate((0, hour // 2, 4 * hour)):
        write_run(tmp_path / f"rank{rank}.pickle", start_us=1_700_000_000_000_000 + start)
    with pytest.raises(RecordingError, match=r"rank2.*begins 3\.5 hours after the end of .*rank1"):
        ranks([str(tmp_path)])
    assert main(["ranks", str(tmp_path), "--mixed"]) == 0
    (tmp_path / "rank2.pickle").unlink()
    assert len(ranks([str(tmp_path)]).runs) == 2
