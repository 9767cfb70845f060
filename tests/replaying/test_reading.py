"""Inference of calls that left no entry: explanations are chosen, tested and changed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from allocsim import CachingAllocator, Hints, OutOfMemoryError, load
from allocsim import replay as replayed
from allocsim.core import MAX_REQUEST
from allocsim.inference import search as reading
from allocsim.recording import Action, Recording
from allocsim.replaying import prepare
from allocsim.simulation import DeviceRun
from allocsim.simulation.plan import Plan, StepKind
from allocsim.units import GIB, MIB
from benchmarks.guesses import FAMILIES, programs, write

Recorded = Callable[..., Recording]
Written = Callable[[Any], Recording]
Program = Callable[[CachingAllocator], None]

LAYERS = 28
GPT2 = Path(__file__).parents[2] / "traces" / "gpt2-ragged-torch2.15.pickle.gz"


def exact(recording: Recording, memory: int | str | None = None) -> DeviceRun:
    """Replay a recording, and check that the replay is exact."""
    (run,) = replayed(recording, device_memory=memory).devices
    assert run.fidelity is not None
    assert run.fidelity.first_mismatch is None
    assert run.fidelity.is_exact
    return run


def plan_of(recording: Recording, memory: int | None = None) -> Plan:
    return prepare(recording)[0].on(memory).plan


def kinds(plan: Plan) -> list[str]:
    return [StepKind(kind).name for kind in plan.steps.kind]


def snapshot_of(program: Program, memory: str, conf: str = "", **options: Any) -> Any:
    gpu = CachingAllocator(memory, conf, record_history=True, **options)
    program(gpu)
    return gpu.snapshot()


def address(found: int | None) -> int:
    assert found is not None
    return found


def refused(gpu: CachingAllocator, size: int, stream: int = 0) -> None:
    with pytest.raises(OutOfMemoryError):
        gpu.malloc(size, stream)


# -- empty_cache and a full device -------------------------------------------------------


def emptied_once(gpu: CachingAllocator) -> None:
    cached = gpu.malloc(40 * MIB)
    gpu.malloc(30 * MIB)
    gpu.free(cached)
    gpu.empty_cache()
    gpu.malloc(40 * MIB)


@pytest.mark.parametrize("policy", ["bump", "firstfit"])
def test_empty_cache_is_inferred_if_the_request_was_not_refused(
    policy: str, written: Written
) -> None:
    """40 MiB were free, so a request for 40 MiB cannot have been refused."""
    recording = written(snapshot_of(emptied_once, "4GiB", address_policy=policy))
    for memory in (None, 4 * GIB):
        run = exact(recording, memory)
        assert run.fidelity is not None
        assert run.fidelity.addresses_matched == 3
    assert "a release of cached memory is attributed to a call of empty_cache" in run.notes
    assert run.stats["num_alloc_retries"] == 0


def test_empty_cache_is_inferred_on_a_device_of_recorded_size(written: Written) -> None:
    snapshot = snapshot_of(emptied_once, "4GiB") | {"allocsim": {"device_memory": 4 * GIB}}
    assert plan_of(written(snapshot)).n_empty_cache == 1


def test_given_device_size_excludes_a_refusal_with_garbage_collection(recorded: Recorded) -> None:
    """If the device size is unknown, a small device that refused a request is assumed."""

    def program(gpu: CachingAllocator) -> None:
        small, large = gpu.malloc(512), gpu.malloc(18 * MIB)
        gpu.free(small)
        gpu.free(large)
        gpu.empty_cache()
        gpu.malloc(3 * MIB)

    recording = recorded(program, memory="1GiB", conf="garbage_collection_threshold:0.6")
    unknown, given = plan_of(recording), plan_of(recording, 1 * GIB)
    assert "ROOM" in kinds(unknown)
    assert {"DICTATE", "ROOM"}.isdisjoint(kinds(prepare(recording)[0].free_plan))
    assert (given.n_empty_cache, "ROOM" in kinds(given)) == (1, False)


def test_note_says_that_both_causes_are_possible(recorded: Recorded) -> None:
    """A larger request at the peak: a device of 70 to 118 MiB, or a call on any device."""

    def program(gpu: CachingAllocator) -> None:
        cached = gpu.malloc(40 * MIB)
        gpu.malloc(30 * MIB)
        gpu.free(cached)
        gpu.empty_cache()
        gpu.malloc(50 * MIB)

    run = exact(recorded(program))
    text = " ".join(run.notes)
    assert "suggest 80.00 MiB to 118.00 MiB" in text
    assert (
        "a release before a new segment is attributed to a full device; "
        "calls of empty_cache would explain it too"
    ) in run.notes
    known = exact(recorded(program), 16 * GIB)
    assert "explain it too" not in " ".join(known.notes)
    assert plan_of(recorded(program), 16 * GIB).n_empty_cache == 1


def layers(first_sizes: Iterable[int], n_small: int) -> Program:
    """Return a program with temporaries of 5.4 GiB per layer, released at the peak."""

    def program(gpu: CachingAllocator) -> None:
        for first in first_sizes:
            temporaries = [gpu.malloc(first)]
            temporaries += [gpu.malloc(393 * MIB) for _ in range(14)]
            for _ in range(n_small):
                gpu.malloc(512)
            for block in temporaries:
                gpu.free(block)
            gpu.empty_cache()

    return program


def with_stacks(snapshot: Any) -> Any:
    """Add Python stacks that name empty_cache to the releases."""
    stack = [
        {"filename": "torch/cuda/memory.py", "name": "empty_cache", "line": 222},
        {"filename": "layers.py", "name": "forward", "line": 7},
    ]
    for entry in snapshot["device_traces"][0]:
        if entry["action"] == "segment_free":
            entry["frames"] = stack
    return snapshot


def test_no_device_size_is_inferred_if_calls_are_excluded_and_more_was_reserved(
    recorded: Recorded,
) -> None:
    """50 MiB were refused with 70 MiB reserved, but 300 MiB were reserved later."""

    def program(gpu: CachingAllocator) -> None:
        emptied_once(gpu)
        gpu.malloc(230 * MIB)

    recording = recorded(program)
    plan = prepare(recording, hints=Hints(empty_cache="never"))[0].plan
    assert (plan.n_empty_cache, plan.refused_below, plan.n_either) == (0, None, 0)


def test_release_of_one_oversize_block_is_a_refusal(recorded: Recorded) -> None:
    """With max_split_size a refused request releases one oversize block; a call releases all."""

    def program(gpu: CachingAllocator) -> None:
        blocks = [gpu.malloc(size * MIB) for size in (40, 60)]
        for block in blocks:
            gpu.free(block)
        gpu.malloc(70 * MIB)

    plan = plan_of(recorded(program, memory="150MiB", conf="max_split_size_mb:32"))
    assert plan.refused_below == (40 + 60 + 70) * MIB
    assert (plan.n_empty_cache, plan.n_either) == (0, 0)


@pytest.mark.parametrize("has_stacks", [False, True], ids=["", "stacks"])
def test_empty_cache_is_inferred_at_each_peak(has_stacks: bool, written: Written) -> None:
    """Each of the 28 layers makes 104 requests, after the layer before returned its memory."""
    snapshot = snapshot_of(layers([32 * MIB] * LAYERS, 89), "80GiB")
    recording = written(with_stacks(snapshot) if has_stacks else snapshot)
    assert recording.devices[0].count(Action.SEGMENT_FREE) == 420
    run = exact(recording)
    assert run.fidelity is not None
    assert run.fidelity.addresses_matched == 2912
    assert run.device_memory is None  # none is inferred
    named = " (28 named by their Python stacks)" if has_stacks else ""
    assert f"28 releases of cached memory are attributed to empty_cache calls{named}" in run.notes


GROWING = [(400 + 2 * layer) * MIB for layer in range(LAYERS)]
"""First request of each layer, larger than any block that the layer before cached."""


def test_calls_that_look_like_a_full_device(written: Written) -> None:
    """Only a Python stack or the device size shows that empty_cache was called."""
    snapshot = snapshot_of(layers(GROWING, 1), "80GiB")
    recording = written(snapshot)
    text = " ".join(exact(recording).notes)
    assert "27 releases before a new segment are attributed to a full device" in text
    assert "calls of empty_cache would explain them too" in text
    assert exact(recording, 80 * GIB).stats["num_alloc_retries"] == 0
    named = exact(written(with_stacks(snapshot)))
    assert named.device_memory is None
    assert "(28 named by their Python stacks)" in " ".join(named.notes)


def test_full_device_is_inferred_for_each_layer(written: Written) -> None:
    """The requests are the same without calls, on a device without room for two layers."""

    def program(gpu: CachingAllocator) -> None:
        for first in GROWING:
            temporaries = [gpu.malloc(first)]
            temporaries += [gpu.malloc(393 * MIB) for _ in range(14)]
            for block in temporaries:
                gpu.free(block)

    recording = written(snapshot_of(program, "5.9GiB"))
    run = exact(recording, "5.9GiB")
    assert run.stats["num_alloc_retries"] == LAYERS - 1
    assert plan_of(recording).is_whole


# -- MemPools ----------------------------------------------------------------------------


def test_deleted_mempool_is_inferred(recorded: Recorded) -> None:
    """empty_cache would have returned the cached 40 MiB too."""

    def program(gpu: CachingAllocator) -> None:
        gpu.free(gpu.malloc(40 * MIB))
        gpu.begin_allocate_to_pool(1)
        held = gpu.malloc(30 * MIB)
        gpu.end_allocate_to_pool(1)
        gpu.free(held)
        gpu.delete_mempool(1)
        gpu.malloc(40 * MIB)

    recording = recorded(program, "4GiB")
    assert recording.devices[0].count(Action.SEGMENT_FREE) == 1
    for memory in (None, 4 * GIB):
        run = exact(recording, memory)
        assert run.stats["num_device_free"] == 1
        assert "a MemPool was deleted: only memory of private pools was released" in run.notes
    assert plan_of(recording).n_deleted == 1
    assert plan_of(recording).n_empty_cache == 0


# -- frees that a full device waited for -------------------------------------------------


@pytest.mark.parametrize("conf", ["", "expandable_segments:True"])
@pytest.mark.parametrize("policy", ["bump", "firstfit"])
def test_free_that_the_retry_waited_for_is_inferred(
    policy: str, conf: str, written: Written
) -> None:
    """The last free before the request waits for a stream, and the retry waits for the free.

    Its free_completed entry is right after it in the recording, as for an immediate free.
    """

    def program(gpu: CachingAllocator) -> None:
        side = 4096
        shared, _ = gpu.malloc(20_971_008), gpu.malloc(20_971_008)
        other = gpu.malloc(20_971_008, side)
        gpu.record_stream(address(shared), side)
        gpu.free(other)
        gpu.free(shared)
        gpu.malloc(20_971_008)
        gpu.free(gpu.malloc(3000, side))
        gpu.malloc(3000)

    recording = written(snapshot_of(program, "64MiB", conf, address_policy=policy))
    for memory in (None, 64 * MIB):
        run = exact(recording, memory)
        assert run.fidelity is not None
        assert run.fidelity.addresses_matched == 6
        assert run.stats["num_alloc_retries"] == 1


# -- requests that failed ----------------------------------------------------------------


@pytest.mark.parametrize("policy", ["bump", "firstfit"])
def test_segment_reserved_by_a_failed_request(policy: str, written: Written) -> None:
    """The segment has no entry, and the next request on its stream maps it."""

    def program(gpu: CachingAllocator) -> None:
        gpu.malloc(30 * MIB)
        refused(gpu, 200 * MIB, stream=4096)
        side, large = gpu.malloc(20 * MIB, 4096), gpu.malloc(40 * MIB)
        gpu.free(side)
        gpu.free(large)
        gpu.malloc(70 * MIB)

    exact(
        written(snapshot_of(program, "100MiB", "expandable_segments:True", address_policy=policy))
    )


@pytest.mark.parametrize("conf", ["", "expandable_segments:True"])
@pytest.mark.parametrize("policy", ["bump", "firstfit"])
def test_largest_possible_request(policy: str, conf: str, written: Written) -> None:
    """The largest request is one byte less than an exbibyte.

    Its recorded size is rounded up to a size that malloc does not accept.
    """

    def program(gpu: CachingAllocator) -> None:
        first = gpu.malloc(30 * MIB)
        refused(gpu, MAX_REQUEST - 1)
        gpu.free(first)
        refused(gpu, MAX_REQUEST - 1)
        gpu.malloc(20 * MIB, 4096)
        gpu.malloc(40 * MIB)

    recording = written(snapshot_of(program, "100MiB", conf, address_policy=policy))
    assert recording.devices[0].size.max() == MAX_REQUEST
    for memory in (None, 100 * MIB):
        assert exact(recording, memory).stats["num_ooms"] == 2


def test_error_that_the_device_does_not_explain(recorded: Recorded) -> None:
    """The recording does not show if a limit or another process is the cause."""

    def program(gpu: CachingAllocator) -> None:
        gpu.set_per_process_memory_fraction(0.5)
        gpu.free(gpu.malloc(400 * MIB))
        refused(gpu, 600 * MIB)
        gpu.malloc(300 * MIB)

    run = exact(recorded(program, "1GiB"))
    assert run.stats["num_ooms"] == 1
    assert run.notes[0] == (
        "requests refused although the device had room: 1; something else used its memory, "
        "or the program set a lower limit"
    )


# -- a fraction set by a call ------------------------------------------------------------


@pytest.mark.slow
def test_limit_is_inferred_from_garbage_collections(written: Written) -> None:
    """Requests of GPT-2, with a limit of 60 % of 10 GiB."""
    trace = load(GPT2).devices[0]

    def program(gpu: CachingAllocator) -> None:
        gpu.set_per_process_memory_fraction(0.6)
        live: dict[int, int | None] = {}
        columns = (trace.action, trace.addr, trace.size, trace.stream)
        for action, addr, size, stream in zip(*(c.tolist() for c in columns), strict=True):
            if action == Action.ALLOC:
                live[addr] = gpu.malloc(size, stream)
            elif action == Action.FREE_REQUESTED and addr in live:
                gpu.free(live.pop(addr))

    snapshot = snapshot_of(program, "10GiB", "garbage_collection_threshold:0.6")
    recording = written(snapshot)
    for memory in (None, 10 * GIB):
        run = exact(recording, memory)
        assert run.fidelity is not None
        assert run.fidelity.addresses_matched == 16_997
        assert run.stats["num_device_free"] == 40
        assert "empty_cache" not in " ".join(run.notes)
    share = "6.00 GiB (60 % of the device)"
    assert f"garbage was collected: the program seems to have set a limit of {share}" in run.notes


# -- how explanations are chosen and changed ---------------------------------------------


def test_immediate_free_is_one_step(recorded: Recorded) -> None:
    recording = recorded(lambda gpu: gpu.free(gpu.malloc(100)))
    assert kinds(plan_of(recording)) == ["DICTATE", "ALLOC", "FREE"]


def test_releases_at_the_end_or_before_a_free_are_calls(recorded: Recorded) -> None:
    def program(gpu: CachingAllocator) -> None:
        last, cached = gpu.malloc(30 * MIB), gpu.malloc(40 * MIB)
        gpu.free(cached)
        gpu.malloc(100)
        gpu.empty_cache()
        gpu.free(last)
        gpu.malloc(200)
        gpu.empty_cache()

    plan = plan_of(recorded(program))
    assert kinds(plan)[-4:] == ["EMPTY_CACHE", "FREE", "ALLOC", "EMPTY_CACHE"]
    assert plan.n_empty_cache == 2


def test_oom_entry_is_a_request_and_shows_the_capacity(recorded: Recorded) -> None:
    def program(gpu: CachingAllocator) -> None:
        gpu.malloc(20 * MIB)
        refused(gpu, 30 * MIB)

    plan = plan_of(recorded(program, "27MiB"))
    assert kinds(plan)[-1] == "OOM"
    assert plan.capacity == plan.inferred_capacity == 27 * MIB


def test_explanation_is_changed_if_later_entries_contradict_it(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full device releases the largest oversize block first, empty_cache the smallest."""

    def program(gpu: CachingAllocator) -> None:
        cached = [gpu.malloc(size * MIB) for size in (48, 48, 51)]
        for block in cached:
            gpu.free(block)
        gpu.malloc(100)
        gpu.empty_cache()
        gpu.malloc(60 * MIB)

    recording = recorded(program, "80GiB", "max_split_size_mb:40")
    drives = Drives(monkeypatch)
    plan = plan_of(recording)
    assert drives.paths[0] == [0]
    assert drives.paths[-1] != [0]
    assert plan.is_whole
    assert plan.n_empty_cache == 1
    assert exact(recording).device_memory is None


def test_refusal_is_excluded_by_addresses_of_expandable_segments(tmp_path: Path) -> None:
    """A device of 604 MiB would explain a release, but not the recorded addresses.

    Its address space would be nine eighths of the device (semantics 4.1).
    """
    path = tmp_path / "program.pickle"
    write(FAMILIES["expandable"](random.Random("expandable 38")), "2.15", path)
    recording = load(path)
    run = exact(recording)
    assert run.device_memory is None
    assert plan_of(recording).n_empty_cache == 2


class Drives:
    """Counter of the replays of a search, with the explanations chosen in each replay."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.paths: list[list[int]] = []
        drive = reading._Search._drive

        def counted(mine: Any, **options: Any) -> int | None:
            diverged_at = drive(mine, **options)
            self.paths.append([choice.taken for _, choice in sorted(mine.choices.items())])
            return diverged_at

        monkeypatch.setattr(reading._Search, "_drive", counted)


def many_calls(gpu: CachingAllocator) -> None:
    """Call empty_cache where a full device would explain each release too."""
    for turn in range(30):
        gpu.free(gpu.malloc((40 + 2 * turn) * MIB))
        gpu.empty_cache()
    for block in [gpu.malloc(30 * MIB) for _ in range(2)]:
        gpu.free(block)
    gpu.malloc(30 * MIB)


@pytest.fixture
def tampered(written: Written) -> tuple[Recording, int]:
    """Return a recording whose last request got the wrong of two equal blocks, and its entry."""
    snapshot = snapshot_of(many_calls, "80GiB")
    taken, free = snapshot["segments"]
    for name in ("address", "blocks"):
        taken[name], free[name] = free[name], taken[name]
    taken["address"], free["address"] = free["address"], taken["address"]
    taken["blocks"][0]["address"], free["blocks"][0]["address"] = (
        taken["address"],
        free["address"],
    )
    for name in ("allocated_size", "active_size", "requested_size"):
        taken[name], free[name] = free[name], taken[name]
    trace = snapshot["device_traces"][0]
    last = max(n for n, entry in enumerate(trace) if entry["action"] == "alloc")
    (moved,) = (
        segment["address"]
        for segment in (taken, free)
        if segment["blocks"][0]["state"] == "active_allocated"
    )
    assert trace[last]["addr"] != moved
    trace[last]["addr"] = moved
    return written(snapshot), last


def test_unexplained_entry_is_the_first_mismatch(
    tampered: tuple[Recording, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All entries before it agree, and the search ends after STEPS steps."""
    recording, last = tampered
    monkeypatch.setattr(reading, "STEPS", 5_000)
    drives = Drives(monkeypatch)
    (run,) = replayed(recording).devices
    assert run.fidelity is not None
    assert run.fidelity.first_mismatch is not None
    assert run.fidelity.first_mismatch.entry == last
    assert run.fidelity.addresses_matched == run.fidelity.allocations - 1
    assert 3 < len(drives.paths) <= 5_000 // len(recording.devices[0]) + 2


def test_search_changes_only_the_last_choices(
    tampered: tuple[Recording, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Choices more than LOOK_BACK before the contradiction are not changed."""
    monkeypatch.setattr(reading, "LOOK_BACK", 2)
    drives = Drives(monkeypatch)
    assert not plan_of(tampered[0]).is_whole
    paths = [path for path in drives.paths if len(path) == max(map(len, drives.paths))]
    assert len(paths[0]) > 20
    assert len({tuple(path[:-2]) for path in paths}) == 1
    assert len({tuple(path[-2:]) for path in paths}) > 2


def test_recording_without_open_gaps_is_not_replayed(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    drives = Drives(monkeypatch)
    plan = plan_of(recorded(lambda gpu: gpu.malloc(30 * MIB)))
    assert plan.is_whole
    assert drives.paths == []


# -- random programs ---------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_random_programs_replay_exactly(family: str) -> None:
    outcomes = [each for seed in range(4) for each in programs(family, seed, "2.15", is_real=False)]
    assert [each for each in outcomes if each.problem] == []


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_more_random_programs_replay_exactly(family: str) -> None:
    seeds = random.Random(family).sample(range(1000, 10_000), 60)
    outcomes = [each for seed in seeds for each in programs(family, seed, "2.15", is_real=False)]
    assert [each for each in outcomes if each.problem] == []
