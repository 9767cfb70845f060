"""Several small programs on one card."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from allocsim import CachingAllocator
from allocsim.analysis.colocate import colocate
from allocsim.errors import ConfigError, RecordingError
from allocsim.units import GIB, MIB

CONTEXT = 100 * MIB
POOL = (0, 1)

Act = Callable[[CachingAllocator], None]
"""Requests of one program."""


@pytest.fixture
def record(tmp_path: Path) -> Callable[..., str]:
    """Write a recording of a program alone, and return its path."""

    def recorded(act: Act, conf: str = "", *, times: list[int] | None = None) -> str:
        gpu = CachingAllocator(80 * GIB, conf, record_history=True)
        act(gpu)
        snapshot: dict[str, Any] = gpu.snapshot()
        for entry, time in zip(snapshot["device_traces"][0], times or (), strict=False):
            entry["time_us"] = time
        file = tmp_path / f"{len(list(tmp_path.iterdir()))}.pickle"
        file.write_bytes(pickle.dumps(snapshot, protocol=4))
        return str(file)

    return recorded


def spike(size: int, kept: int = 20 * MIB) -> Act:
    """Return a program that keeps a block, and frees a larger block into the cache."""

    def act(gpu: CachingAllocator) -> None:
        gpu.malloc(kept)
        gpu.free(gpu.malloc(size))

    return act


def test_peak_of_the_card_is_what_all_processes_hold(record: Callable[..., str]) -> None:
    """The cache of the first program counts while the second program runs."""
    files = [record(spike(300 * MIB)), record(spike(100 * MIB))]
    found = colocate(files, context=CONTEXT)
    assert found.fits
    assert found.run.held_at_peak == (420 * MIB, 220 * MIB)
    assert found.run.peak == 640 * MIB
    assert [phase.kept for phase in found.run.phases] == [420 * MIB, 220 * MIB]


def test_request_fails_if_another_process_keeps_its_cache(record: Callable[..., str]) -> None:
    """An empty_cache after the first phase makes room."""
    files = [record(spike(300 * MIB)), record(spike(100 * MIB))]
    kept = colocate(files, context=CONTEXT, device_memory=600 * MIB, smallest=False)
    failure = kept.run.failure
    assert failure is not None
    assert (failure.phase, failure.wanted, failure.free) == (1, 100 * MIB, 60 * MIB)
    assert failure.held == (420 * MIB, 120 * MIB)
    assert "Tried to allocate 100.00 MiB" in failure.message
    assert failure.needed == 640 * MIB
    emptied = colocate(files, context=CONTEXT, device_memory=600 * MIB, sleep=["A:cache"])
    assert emptied.fits
    assert emptied.run.phases[0].released == 300 * MIB


def test_smallest_card_serves_every_request_and_two_mebibytes_less_do_not(
    record: Callable[..., str],
) -> None:
    files = [record(spike(300 * MIB)), record(spike(350 * MIB))]
    found = colocate(files, context=CONTEXT)
    assert found.smallest is not None
    assert found.smallest <= found.run.peak == found.any_order
    for size, fits in ((found.smallest, True), (found.smallest - 2 * MIB, False)):
        run = colocate(files, context=CONTEXT, device_memory=size, smallest=False)
        assert run.fits is fits
    given, emptied, *_ = found.ways
    assert emptied.name == "empty_cache after each phase"
    assert (given.peak, emptied.peak) == (890 * MIB, 590 * MIB)


def test_program_that_exits_releases_its_context_too(record: Callable[..., str]) -> None:
    files = [record(spike(300 * MIB)), record(spike(100 * MIB))]
    found = colocate(files, context=CONTEXT, sleep=["A:exit"], smallest=False)
    assert [phase.kept for phase in found.run.phases] == [0, 220 * MIB]
    assert found.run.peak == 420 * MIB


def engine(gpu: CachingAllocator) -> None:
    """Load weights into a MemPool, then serve from the default pool, which keeps 30 MiB."""
    gpu.begin_allocate_to_pool(POOL)
    gpu.malloc(400 * MIB)
    gpu.end_allocate_to_pool(POOL)
    gpu.malloc(30 * MIB)
    for _ in range(3):
        gpu.free(gpu.malloc(60 * MIB))


def test_sleep_releases_the_mempool_and_waking_takes_it_again(record: Callable[..., str]) -> None:
    files = [record(spike(300 * MIB)), record(engine)]
    phases = "rollout:B@8,train:A,rollout:B"
    found = colocate(files, context=CONTEXT, phases=phases, sleep=["B:level1"])
    rollout, train, again = found.run.phases
    assert (rollout.peak, rollout.kept) == (590 * MIB, 130 * MIB)
    assert (rollout.released, rollout.host_copy) == (460 * MIB, 400 * MIB)
    assert train.peak == 550 * MIB
    assert again.woken == 400 * MIB
    assert again.peak == found.run.peak == (420 + 530 + 60) * MIB
    discarded = colocate(files, phases=phases, sleep=["B:level2"], smallest=False)
    assert discarded.run.phases[0].host_copy == 0


def test_waking_fails_if_the_other_program_kept_the_memory(record: Callable[..., str]) -> None:
    files = [record(spike(300 * MIB)), record(engine)]
    found = colocate(
        files,
        context=CONTEXT,
        phases="rollout:B@8,train:A,rollout:B",
        sleep=["B:pools"],
        device_memory=800 * MIB,
        smallest=False,
    )
    failure = found.run.failure
    assert failure is not None
    assert (failure.phase, failure.entry) == (2, None)
    assert (failure.wanted, failure.free, failure.needed) == (400 * MIB, 250 * MIB, 950 * MIB)


def test_threads_share_one_cache(record: Callable[..., str]) -> None:
    """The result is that of one allocator that serves both programs."""
    both = CachingAllocator(80 * GIB)
    for act in (spike(300 * MIB), engine):
        act(both)
    files = [record(spike(300 * MIB)), record(engine)]
    found = colocate(files, context=CONTEXT, threads=True, smallest=False)
    assert found.run.peak == both.max_memory_reserved() + CONTEXT == 820 * MIB
    found = colocate(files, threads=True, phases="a:B@8,b:A,c:B", sleep=["B:pools"], smallest=False)
    assert [phase.released for phase in found.run.phases] == [460 * MIB, 0, 700 * MIB]


def test_programs_interleave_at_the_recorded_times(record: Callable[..., str]) -> None:
    """At one moment both large blocks are in use; one after the other, they are not."""

    def burst(gpu: CachingAllocator) -> None:
        gpu.free(gpu.malloc(300 * MIB))
        gpu.empty_cache()

    first = record(burst, times=[1000, 1000, 3000, 3000, 3000])
    during = record(burst, times=[2000, 2000, 4000, 4000, 4000])
    after = record(burst, times=[3500, 3500, 5000, 5000, 5000])
    assert colocate([first, during], by_time=True, smallest=False).run.peak == 600 * MIB
    found = colocate([first, after], by_time=True, smallest=False)
    assert found.any_order == 600 * MIB
    assert "begin at once" in found.notes[-1]


def test_wrong_options_are_refused_in_a_sentence(record: Callable[..., str]) -> None:
    files = [record(spike(300 * MIB)), record(engine)]
    for options, sentence in (
        ({"phases": "train:A"}, "program B has no phase"),
        ({"phases": "train:C,a:A,b:B"}, "with a program from A to B"),
        ({"phases": "a:A,b:B,c:A"}, "expected A@ENTRY in all but the last"),
        ({"phases": "a:A@99,b:B,c:A"}, "expected an entry after the previous phase, up to"),
        ({"sleep": ["B:deep"]}, "expected none, cache, pools, level1, level2, all, exit"),
        ({"sleep": ["C:all"]}, "expected a program from A to B"),
        ({"phases": "a:A@2,b:B,c:A", "sleep": ["exit"]}, "A has a later phase"),
        ({"sleep": ["all"], "threads": True}, "expected no threads"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            colocate(files, smallest=False, **options)
    with pytest.raises(ConfigError, match="1 recording"):
        colocate(files[:1])


def test_times_are_needed_to_interleave(tmp_path: Path, record: Callable[..., str]) -> None:
    whole = Path(record(engine))
    snapshot = pickle.loads(whole.read_bytes())
    for entry in snapshot["device_traces"][0]:
        del entry["time_us"]
    bare = tmp_path / "bare.pickle"
    bare.write_bytes(pickle.dumps(snapshot, protocol=4))
    with pytest.raises(RecordingError, match="its entries have no times"):
        colocate([str(whole), str(bare)], by_time=True)
