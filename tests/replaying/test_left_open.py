"""Range of a what-if when the recording does not show every call of the program."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import mean

import numpy as np
import pytest

from allocsim import CachingAllocator, Hints, replay
from allocsim.inference import calls_without_entry
from allocsim.inference.calls_without_entry import with_calls
from allocsim.recording import Mark, MarkKind, Provenance, Recording
from allocsim.replaying import Prepared, baseline, prepare, uncertainty, with_proof, with_range
from allocsim.replaying.uncertainty import peaks_by_plan
from allocsim.simulation import Setting, StepKind
from allocsim.simulation.plan import Plan
from allocsim.units import GIB, MIB, format_size

Recorded = Callable[..., Recording]
Program = Callable[[CachingAllocator], None]
UNCUT = "max_split_size_mb:32"


def two_calls(gpu: CachingAllocator) -> None:
    """The first call releases nothing, because a part of the split 60 MiB block is in use.

    Under max_split_size_mb:32 the block is not split and would be released, and the next request
    would use its room.
    """
    gpu.free(gpu.malloc(60 * MIB))
    held = gpu.malloc(30 * MIB)
    gpu.empty_cache()
    gpu.malloc(80 * MIB)
    gpu.free(held)
    gpu.free(gpu.malloc(20 * MIB))
    gpu.empty_cache()
    gpu.malloc(2 * MIB)


def peak_of(program: Program, conf: str) -> int:
    gpu = CachingAllocator("16GiB", conf)
    program(gpu)
    return gpu.memory_stats()["reserved_bytes.all.peak"]


def test_range_includes_the_run_with_calls_that_left_no_entry(
    recorded: Recorded,
) -> None:
    recording = recorded(two_calls)
    (run,) = replay(recording, UNCUT).devices
    assert run.peaks_left_open is not None
    low, high = run.peak_range
    assert low <= peak_of(two_calls, UNCUT) <= high
    assert low < run.peak_reserved_bytes
    assert any("calls of empty_cache that release nothing leave no entry" in n for n in run.notes)


@pytest.mark.parametrize("name", ["notes", "peak_range", "peaks_left_open", "pickle"])
def test_range_is_computed_on_first_use(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    ranges: list[Setting] = []

    def counted(
        prepared: Prepared,
        setting: Setting,
        memory: int | None,
        loud: frozenset[int] | None,
        peak: int | None,
    ) -> object:
        ranges.append(setting)
        return peaks_by_plan(prepared, setting, memory, loud, peak)

    monkeypatch.setattr(uncertainty, "peaks_by_plan", counted)
    (run,) = replay(recorded(two_calls), UNCUT).devices
    assert run.peak_reserved_bytes and run.headline() and run.timeline is not None
    assert not ranges
    found = pickle.loads(pickle.dumps(run)) if name == "pickle" else run
    read = "notes" if name == "pickle" else name
    assert getattr(found, read) == getattr(run, read)
    assert run.peaks_left_open is not None
    assert found.peaks_left_open == run.peaks_left_open
    assert ranges == [Setting(UNCUT)]


def test_replay_as_recorded_has_no_range(recorded: Recorded) -> None:
    (run,) = replay(recorded(two_calls)).devices
    assert run.peaks_left_open is None
    assert run.peak_range == (run.peak_reserved_bytes, run.peak_reserved_bytes)


def test_program_without_visible_calls_is_assumed_to_make_none(recorded: Recorded) -> None:
    """Whole segments are cached nearly always, so a call would have left an entry."""

    def careful(gpu: CachingAllocator) -> None:
        gpu.malloc(512)
        gpu.free(gpu.malloc(60 * MIB))
        for _ in range(20):
            gpu.free(gpu.malloc(512))
        gpu.malloc(30 * MIB)
        gpu.malloc(80 * MIB)

    recording = recorded(careful)
    (prepared,) = prepare(recording)
    assert 0 < prepared.quiet.share < 0.1
    assert peak_with_calls(prepared, prepared.quiet.after) != peak_with_calls(prepared, ())
    (run,) = replay(recording, UNCUT).devices
    assert run.peaks_left_open is None


def peak_with_calls(prepared: Prepared, places: Sequence[int]) -> int:
    """Return the peak in bytes of a what-if with additional empty_cache calls after these steps."""
    plan = with_calls(prepared.free_plan, places)
    drive = prepared.drive(Setting(UNCUT), None, plan=plan)
    return drive.allocator.memory_stats()["reserved_bytes.all.peak"]


def hidden_call(gpu: CachingAllocator) -> None:
    """The only call releases nothing, and nearly any other call would not either."""
    gpu.free(gpu.malloc(60 * MIB))
    gpu.malloc(30 * MIB)
    gpu.empty_cache()
    gpu.malloc(80 * MIB)


def test_visible_calls_give_a_range_even_if_it_is_one_value(recorded: Recorded) -> None:
    (run,) = replay(recorded(two_calls), "roundup_power2_divisions:4").devices
    assert run.peaks_left_open == (run.peak_reserved_bytes, run.peak_reserved_bytes)
    assert f"the peak reserved stays {format_size(run.peak_reserved_bytes)}" in run.notes[-1]


def cycles(gpu: CachingAllocator) -> None:
    """In each cycle, a call would leave an entry at five moments, and is made at the last of them.

    At the five moments before and the moment after, a call would leave no entry.
    """
    for _ in range(20):
        large = gpu.malloc(30 * MIB)
        for _ in range(4):
            gpu.malloc(512)
        gpu.free(large)
        for _ in range(4):
            gpu.malloc(512)
        gpu.empty_cache()


def n_calls(plan: Plan) -> int:
    return int(np.count_nonzero(plan.steps.kind == StepKind.EMPTY_CACHE))


def test_random_calls_are_as_frequent_as_visible_ones(recorded: Recorded) -> None:
    """20 of 100 moments have visible calls, so 24 of the 120 quiet moments get a call."""
    (prepared,) = prepare(recorded(cycles))
    everywhere, *drawn = (other.plan() for other in prepared.open_plans)
    assert (n_calls(prepared.free_plan), n_calls(everywhere)) == (20, 20 + 120)
    assert mean(map(n_calls, drawn)) == pytest.approx(20 + 24, abs=2)


def test_longer_plans_get_fewer_random_plans(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = recorded(cycles)
    for steps, n_drawn in ((10**9, 64), (3000, 13), (100, 4)):
        monkeypatch.setattr(calls_without_entry, "STEPS", steps)
        assert len(prepare(replace(recording))[0].open_plans) == 1 + n_drawn


@pytest.mark.parametrize("program", [cycles, hidden_call])
def test_random_plans_are_deterministic(program: Program, recorded: Recorded) -> None:
    recording = recorded(program)
    first, again = (
        [each.plan().steps.kind.tolist() for each in prepare(replace(recording))[0].open_plans]
        for _ in range(2)
    )
    assert first == again


def collecting(gpu: CachingAllocator) -> None:
    """Collect garbage above an unrecorded limit of 512 MiB, and then call empty_cache."""
    gpu.set_per_process_memory_fraction(0.5)
    for size in range(20, 120, 2):
        gpu.free(gpu.malloc(size * MIB))
    gpu.malloc(130 * MIB)
    gpu.empty_cache()


def test_open_plans_include_both_ends_of_the_limit_and_no_calls(recorded: Recorded) -> None:
    recording = recorded(collecting, "1GiB", "garbage_collection_threshold:0.5")
    prepared = prepare(recording)[0].on(GIB)
    plan = prepared.free_plan
    assert plan.limits is not None
    assert plan.n_empty_cache > 0
    *ends, without_calls, everywhere = (other.plan() for other in prepared.open_plans[:4])
    assert {each.limit for each in (plan, *ends)} == {plan.limit, *plan.limits}
    assert n_calls(without_calls) == 0
    assert len(without_calls.steps) == len(plan.steps) - plan.n_empty_cache
    assert everywhere.limit == plan.limit


def test_quiet_moments_use_the_inferred_limit(recorded: Recorded) -> None:
    """Memory that garbage collection returned is not cached any more."""
    loud: list[bool] = []

    def program(gpu: CachingAllocator) -> None:
        gpu.set_per_process_memory_fraction(0.5)
        for size in range(20, 120, 2):
            ptr = gpu.malloc(size * MIB)
            loud.append(gpu.has_cached_memory)
            gpu.free(ptr)
            loud.append(gpu.has_cached_memory)

    recording = recorded(program, "1GiB", "garbage_collection_threshold:0.5")
    prepared = prepare(recording)[0].on(GIB)
    assert prepared.plan.limit == 512 * MIB
    assert list(prepared.quiet.after) == [at for at, is_loud in enumerate(loud) if not is_loud]


def test_program_that_could_hide_calls_gets_a_range(recorded: Recorded) -> None:
    (run,) = replay(recorded(hidden_call), UNCUT).devices
    assert run.peak_range == (peak_of(hidden_call, UNCUT), (60 + 30 + 80) * MIB)
    assert run.peak_reserved_bytes == (60 + 30 + 80) * MIB
    assert any("shows no call of empty_cache, but at 75% of all moments" in n for n in run.notes)


def test_no_range_if_calls_would_not_change_the_peak(recorded: Recorded) -> None:
    (run,) = replay(recorded(hidden_call), "roundup_power2_divisions:4").devices
    assert run.peaks_left_open is None
    assert not any("empty_cache" in note for note in run.notes)


def test_no_range_if_calls_are_excluded(recorded: Recorded) -> None:
    recording = recorded(hidden_call)
    (run,) = replay(recording, UNCUT, hints=Hints(empty_cache="never")).devices
    assert run.peaks_left_open is None
    (prepared,) = prepare(recording)
    noted = replace(prepared, provenance=Provenance())
    assert peaks_by_plan(prepared, Setting(UNCUT), None) is not None
    assert peaks_by_plan(noted, Setting(UNCUT), None) is None


def test_no_range_if_calls_are_marked(recorded: Recorded) -> None:
    (prepared,) = prepare(recorded(two_calls))
    marked = replace(prepared, marks=(Mark(3, MarkKind.EMPTY_CACHE),))
    assert peaks_by_plan(prepared, Setting(UNCUT), None) is not None
    assert peaks_by_plan(marked, Setting(UNCUT), None) is None


def test_with_proof_and_with_range_make_the_replays_before_the_result_is_read(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = recorded(two_calls)
    lazy = replay(recording, UNCUT)
    run = with_range(with_proof(lazy))
    monkeypatch.setattr(uncertainty, "peaks_by_plan", pytest.fail)
    monkeypatch.setattr(baseline, "unstarted_drive", pytest.fail)
    for known in (run, lazy):  # the lazy result shares the replays
        (device,) = known.devices
        assert device.parting is None
        assert device.peaks_left_open is not None and device.notes
