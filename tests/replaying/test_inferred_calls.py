"""Possible causes of a return of memory to the driver, and their order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from allocsim.core import ReplayAllocator
from allocsim.inference.evidence import Facts
from allocsim.inference.gaps import Call, Gap, classify, gaps_of
from allocsim.inference.inferred_calls import Cause, Explanation, explanations, plain_explanation
from allocsim.recording import Action, Trace, pools_of
from allocsim.simulation.plan import Planned, StepKind
from allocsim.units import MIB

A, FR, FC = Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED
SA, SF, OOM = Action.SEGMENT_ALLOC, Action.SEGMENT_FREE, Action.OOM

Entries = Callable[..., Trace]
NEW = 1 << 40
"""Address of the next segment."""

ROOM = StepKind.ROOM
CALL, POOL, REQUEST = Cause.EMPTY_CACHE, Cause.DELETED_POOL, Cause.REQUEST


def only_gap(trace: Trace, *calls: Call) -> Gap:
    pools = pools_of(trace)
    (gap,) = gaps_of(trace, pools, classify(trace, pools, calls), calls)
    return gap


def facts(
    memory: int | None = None, most: int = 0, calls: Iterable[int] = (), **more: Any
) -> Facts:
    return Facts(memory, most, frozenset(calls), **more)


def causes(found: Iterable[Explanation]) -> list[Cause]:
    """Return the causes in order, each once."""
    return list(dict.fromkeys(each.cause for each in found))


def kinds(steps: Iterable[Planned]) -> list[str]:
    return [StepKind(kind).name for kind, *_ in steps]


@pytest.fixture
def cached() -> ReplayAllocator:
    """Return an allocator with 30 MiB cached at address 0, on a device of 1 GiB."""
    allocator = ReplayAllocator("1GiB")
    allocator.free(allocator.malloc(30 * MIB))
    return allocator


@pytest.fixture
def missed(entries: Entries) -> Gap:
    """Return a gap with 30 MiB released and 40 MiB obtained for a request."""
    return only_gap(entries((SF, 0, 30 * MIB), (SA, NEW, 40 * MIB), (A, NEW, 40 * MIB)))


def test_gap_without_effects_has_no_cause(entries: Entries, cached: ReplayAllocator) -> None:
    gap = only_gap(entries((SA, NEW, 40 * MIB), (FC, 0, 1), (A, NEW, 40 * MIB)))
    (plain,) = explanations(gap, cached, facts())
    assert plain == plain_explanation(gap)
    assert kinds(plain.steps) == ["FREE_COMPLETE", "DICTATE", "ALLOC"]


def test_request_that_found_a_block_was_not_refused(
    entries: Entries, cached: ReplayAllocator
) -> None:
    gap = only_gap(entries((SF, 0, 30 * MIB), (A, 8 * MIB, 1)))
    (call,) = explanations(gap, cached, facts(memory=30 * MIB))
    assert kinds(call.steps) == ["EMPTY_CACHE", "ALLOC"]


def test_release_at_the_end_is_a_call(entries: Entries, cached: ReplayAllocator) -> None:
    gap = only_gap(entries((SF, 0, 30 * MIB)))
    assert causes(explanations(gap, cached, facts())) == [CALL]


def test_device_with_room_makes_a_call_more_likely(cached: ReplayAllocator, missed: Gap) -> None:
    found = explanations(missed, cached, facts(memory=1 << 30))
    assert causes(found) == [CALL, REQUEST]


def test_device_without_room_makes_a_refusal_more_likely(missed: Gap) -> None:
    small = ReplayAllocator("60MiB")
    small.free(small.malloc(30 * MIB))
    found = explanations(missed, small, facts(memory=60 * MIB))
    assert causes(found) == [REQUEST, CALL]
    assert kinds(found[0].steps) == ["DICTATE", "ALLOC"]
    assert found[0].refused == 70 * MIB


def test_device_that_held_as_much_had_room(cached: ReplayAllocator, missed: Gap) -> None:
    """30 MiB are reserved and 40 MiB wanted, and 70 MiB may have been reserved before."""
    assert causes(explanations(missed, cached, facts(most=70 * MIB))) == [CALL, REQUEST]
    assert causes(explanations(missed, cached, facts(most=69 * MIB))) == [REQUEST, CALL]


def test_python_stack_that_names_empty_cache_decides(cached: ReplayAllocator, missed: Gap) -> None:
    found = explanations(missed, cached, facts(most=40 * MIB, calls=[0]))
    assert causes(found) == [CALL, REQUEST]


def test_unknown_device_is_assumed_too_small_for_the_request(
    cached: ReplayAllocator, missed: Gap
) -> None:
    """Several sizes are tried; the largest is 68 MiB, one page less than the 70 MiB wanted."""
    found = explanations(missed, cached, facts(most=50 * MIB))
    rooms = [
        [size for kind, _, _, size, _ in each.steps if kind == StepKind.ROOM]
        for each in found
        if each.cause is REQUEST
    ]
    assert rooms == [[50 * MIB, -1], [40 * MIB, -1], [68 * MIB, -1]]


def test_garbage_collection_comes_before_a_refusal(missed: Gap) -> None:
    """A request collects garbage above the threshold.

    A call of empty_cache is less likely, and a full device still less.
    """
    conf = "garbage_collection_threshold:0.5,per_process_memory_fraction:0.5"
    collecting = ReplayAllocator("100MiB", conf)
    collecting.free(collecting.malloc(30 * MIB))
    found = explanations(missed, collecting, facts(memory=100 * MIB, most=70 * MIB))
    assert [each.cause for each in found[:2]] == [REQUEST, CALL]
    assert kinds(found[0].steps) == ["DICTATE", "ALLOC"]
    assert "ROOM" in kinds(found[2].steps)


def test_request_above_the_memory_limit_is_refused_although_the_device_has_room(
    missed: Gap,
) -> None:
    """The limit is 60 of 200 MiB; 30 MiB are reserved and 40 MiB wanted."""
    limited = ReplayAllocator("200MiB", "per_process_memory_fraction:0.3")
    limited.free(limited.malloc(30 * MIB))
    found = explanations(missed, limited, facts(memory=200 * MIB, most=70 * MIB))
    assert [each.cause for each in found[:2]] == [REQUEST, CALL]
    assert kinds(found[0].steps) == ["DICTATE", "ALLOC"]


@pytest.mark.parametrize("kind", [StepKind.FRACTION, StepKind.SETTINGS])
def test_settings_changed_in_the_gap_may_cause_a_release(
    kind: StepKind, entries: Entries, cached: ReplayAllocator
) -> None:
    """The device had room, and before the call the program had no limit."""
    trace = entries((SF, 0, 30 * MIB), (SA, NEW, 40 * MIB), (A, NEW, 40 * MIB))
    gap = only_gap(trace, Call(0, kind, 0))
    assert causes(explanations(gap, cached, facts(memory=1 << 30))) == [REQUEST, CALL]


def test_free_block_before_a_change_of_rounding_excludes_nothing(
    entries: Entries, cached: ReplayAllocator
) -> None:
    """A request of 28 MiB fits the cached 30 MiB, but not after rounding to 32 MiB."""
    trace = entries((SF, 0, 30 * MIB), (SA, NEW, 32 * MIB), (A, NEW, 28 * MIB))
    gap = only_gap(trace, Call(0, StepKind.SETTINGS, 0))
    assert causes(explanations(gap, cached, facts(memory=1 << 30))) == [REQUEST, CALL]
    plain = explanations(only_gap(trace), cached, facts(memory=1 << 30))
    assert causes(plain) == [CALL]


@pytest.mark.parametrize(
    ("conf", "expected"),
    [
        ("expandable_segments:True,max_split_size_mb:21", [REQUEST, CALL]),
        ("expandable_segments:True", [CALL]),
        ("max_split_size_mb:21", [CALL]),
    ],
)
def test_segment_may_serve_a_request_that_no_free_block_may_serve(
    conf: str, expected: list[Cause], entries: Entries
) -> None:
    """The free block of 40 MiB is oversize for 2 MiB, but its segment has room."""
    limited = ReplayAllocator("100MiB", f"{conf},per_process_memory_fraction:0.75")
    for size in (40, 30):
        limited.free(limited.malloc(size * MIB, 4096 * (size == 30)))
    gap = only_gap(entries((Action.SEGMENT_UNMAP, NEW, 30 * MIB), (A, 0, 2 * MIB)))
    assert causes(explanations(gap, limited, facts(memory=100 * MIB))) == expected


def waiting() -> tuple[ReplayAllocator, int, int]:
    """Return an allocator with pending frees of 30 and 40 MiB, and their addresses."""
    full = ReplayAllocator("100MiB")
    first, second = full.malloc(30 * MIB), full.malloc(40 * MIB)
    assert first is not None
    assert second is not None
    full.request_free(first)
    full.request_free(second)
    return full, first, second


def test_frees_that_the_request_waited_for_complete_after_it(entries: Entries) -> None:
    """The pending frees complete in the order of their entries."""
    full, first, second = waiting()
    gap = only_gap(
        entries(
            (A, 1, 1),
            (FC, second, 40 * MIB),
            (FC, first, 30 * MIB),
            (SF, first, 30 * MIB),
            (SF, second, 40 * MIB),
            (SA, NEW, 60 * MIB),
            (A, NEW, 60 * MIB),
        )
    )
    likeliest = explanations(gap, full, facts(memory=100 * MIB))[0]
    assert kinds(likeliest.steps) == [
        "AWAIT",
        "AWAIT",
        "DICTATE",
        "ALLOC",
        "FREE_COMPLETE",
        "FREE_COMPLETE",
    ]
    assert [addr for kind, _, addr, *_ in likeliest.steps if kind == StepKind.AWAIT] == [
        second,
        first,
    ]


@pytest.mark.parametrize(
    ("least", "stream", "likeliest"),
    [
        (25, 0, ["FREE_COMPLETE", "DICTATE", "ALLOC"]),
        (35, 0, ["DICTATE", "ALLOC", "FREE_COMPLETE"]),  # it was cached like any other
        (25, 4096, ["DICTATE", "ALLOC", "FREE_COMPLETE"]),  # another stream's
    ],
)
def test_oversize_block_is_released_without_a_wait(
    least: int, stream: int, likeliest: list[str], entries: Entries
) -> None:
    """Blocks of max_split_size or more are released before a wait (1.8)."""
    full = ReplayAllocator("50MiB", f"max_split_size_mb:{least}")
    address = full.malloc(30 * MIB, stream)
    assert address is not None
    full.request_free(address)
    given_back = ((FC, address, 30 * MIB, stream), (SF, address, 30 * MIB, stream))
    gap = only_gap(entries((A, 1, 1), *given_back, (SA, NEW, 24 * MIB), (A, NEW, 24 * MIB)))
    found = explanations(gap, full, facts(memory=50 * MIB))
    assert found[0].cause is REQUEST
    assert kinds(found[0].steps) == likeliest
    ways = [kinds(each.steps) for each in found]
    assert ["FREE_COMPLETE", "DICTATE", "ALLOC"] in ways
    assert ["DICTATE", "ALLOC", "FREE_COMPLETE"] in ways


def test_free_before_the_request_was_waited_for_if_its_block_fits(entries: Entries) -> None:
    """A completed free would have served the request."""
    full = ReplayAllocator("30MiB")
    address = full.malloc(20 * MIB)
    assert address == 0
    gap = only_gap(
        entries(
            (FR, 0, 20 * MIB),
            (FC, 0, 20 * MIB),
            (SF, 0, 20 * MIB),
            (SA, NEW, 20 * MIB),
            (A, NEW, 20 * MIB),
        )
    )
    found = explanations(gap, full, facts(memory=30 * MIB))
    assert found[0].cause is REQUEST
    assert kinds(found[0].steps) == ["FREE_REQUEST", "DICTATE", "ALLOC", "FREE_COMPLETE"]
    assert kinds(found[-1].steps) == ["FREE", "EMPTY_CACHE", "DICTATE", "ALLOC"]


@pytest.mark.parametrize(("freed", "stream"), [(20 * MIB, 4096), (10 * MIB, 0)])
def test_free_before_the_request_was_complete_if_its_block_does_not_fit(
    freed: int, stream: int, entries: Entries
) -> None:
    """The block is on another stream or too small, so nothing suggests a wait."""
    full = ReplayAllocator("30MiB")
    full.malloc(freed)
    gap = only_gap(
        entries(
            (FR, 0, freed),
            (FC, 0, freed),
            (SF, 0, 20 * MIB),
            (SA, NEW, 20 * MIB, stream),
            (A, NEW, 20 * MIB, stream),
        )
    )
    requests = [each for each in explanations(gap, full, facts(30 * MIB)) if each.cause is REQUEST]
    likeliest, other = (each for each in requests if "ROOM" not in kinds(each.steps))
    assert kinds(likeliest.steps) == ["FREE", "DICTATE", "ALLOC"]
    assert kinds(other.steps) == ["FREE_REQUEST", "DICTATE", "ALLOC", "FREE_COMPLETE"]


@pytest.mark.parametrize(
    ("freed", "wanted", "conf"),
    [
        (20 * MIB, 512, ""),
        (60 * MIB, 20 * MIB, "max_split_size_mb:30"),
        (60 * MIB, 34 * MIB, "max_split_size_mb:30"),
    ],
    ids=["of the other pool", "too good for the request", "too long for it"],
)
def test_free_of_an_oversize_block_was_complete(
    freed: int, wanted: int, conf: str, entries: Entries
) -> None:
    full = ReplayAllocator("70MiB", conf)
    full.malloc(freed)
    obtained = 2 * MIB if wanted < MIB else wanted
    gap = only_gap(
        entries(
            (FR, 0, freed),
            (FC, 0, freed),
            (SF, 0, freed),
            (SA, NEW, obtained),
            (A, NEW, wanted),
        )
    )
    requests = [each for each in explanations(gap, full, facts(70 * MIB)) if each.cause is REQUEST]
    assert kinds(requests[0].steps)[0] == "FREE"


def test_free_before_a_change_of_settings_was_complete(
    entries: Entries,
) -> None:
    """Under the new settings its block may be oversize (random program, seed 5006674)."""
    full = ReplayAllocator("70MiB")
    full.malloc(60 * MIB)
    trace = entries(
        (FR, 0, 60 * MIB),
        (FC, 0, 60 * MIB),
        (SF, 0, 60 * MIB),
        (SA, NEW, 20 * MIB),
        (A, NEW, 20 * MIB),
    )
    gap = only_gap(trace, Call(2, StepKind.SETTINGS, 0))
    requests = [each for each in explanations(gap, full, facts(70 * MIB)) if each.cause is REQUEST]
    assert kinds(requests[0].steps)[0] == "FREE"
    assert "FREE_REQUEST" in {kinds(each.steps)[0] for each in requests}


def test_request_with_a_free_block_may_be_refused_after_a_change_of_settings(
    entries: Entries, cached: ReplayAllocator
) -> None:
    """Before the change, a request that found a block was not refused (seed 6000027)."""
    trace = entries((SF, 0, 30 * MIB), (A, 8 * MIB, 1))
    gap = only_gap(trace, Call(0, StepKind.SETTINGS, 0))
    assert causes(explanations(gap, cached, facts(memory=1 << 30))) == [REQUEST, CALL]
    assert causes(explanations(only_gap(trace), cached, facts(memory=1 << 30))) == [CALL]


def test_request_may_be_refused_before_an_expandable_segment_serves_it(
    entries: Entries,
) -> None:
    """A request without a free block requests a handle before it uses the remaining room.

    If the device has none, the release needs no call (random programs, seeds 5012680 and 6508131).
    """
    conf = "expandable_segments:True,max_split_size_mb:22"
    gap = only_gap(entries((Action.SEGMENT_UNMAP, 20 * MIB, 60 * MIB), (A, 0, 10 * MIB)))
    for memory, expected in ((110 * MIB, [REQUEST, CALL]), (130 * MIB, [CALL, REQUEST])):
        allocator = ReplayAllocator(memory, conf)
        too_good = allocator.malloc(80 * MIB)
        allocator.malloc(10 * MIB + 1)  # 20 MiB lack 512 bytes
        allocator.free(too_good)
        assert causes(explanations(gap, allocator, facts(memory))) == expected


def test_free_that_completed_alone_was_not_waited_for(entries: Entries) -> None:
    """A full device waits for all pending frees, but one free is still pending."""
    full, first, _ = waiting()
    gap = only_gap(
        entries(
            (A, 1, 1),
            (FC, first, 30 * MIB),
            (SF, first, 30 * MIB),
            (SA, NEW, 60 * MIB),
            (A, NEW, 60 * MIB),
        )
    )
    found = explanations(gap, full, facts(memory=100 * MIB))
    requests = [kinds(each.steps) for each in found if each.cause is REQUEST]
    assert requests[0] == ["FREE_COMPLETE", "DICTATE", "ALLOC"]
    assert ["DICTATE", "ALLOC", "FREE_COMPLETE"] in requests


def test_memory_obtained_before_the_release_counts(
    cached: ReplayAllocator, entries: Entries
) -> None:
    """An expandable segment grew by 20 MiB before the driver refused 40 MiB more."""
    gap = only_gap(
        entries(
            (SA, NEW, 20 * MIB),
            (SF, 0, 30 * MIB),
            (SA, NEW + 20 * MIB, 40 * MIB),
            (A, NEW, 60 * MIB),
        )
    )
    found = explanations(gap, cached, facts(most=50 * MIB))
    requests = [each for each in found if each.cause is REQUEST]
    rooms = [size for each in requests for kind, _, _, size, _ in each.steps if kind == ROOM]
    assert rooms == [60 * MIB, -1, 88 * MIB, -1]
    assert {each.refused for each in requests} == {90 * MIB}


def test_known_call_is_in_every_explanation(cached: ReplayAllocator, entries: Entries) -> None:
    """The call most likely returned the memory; otherwise it was made before the request anyway."""
    trace = entries((SF, 0, 30 * MIB), (SA, NEW, 40 * MIB), (A, NEW, 40 * MIB))
    gap = only_gap(trace, Call(0, StepKind.EMPTY_CACHE, 0))
    known, *others = explanations(gap, cached, facts(memory=60 * MIB))
    assert known.cause is Cause.KNOWN
    assert kinds(known.steps) == ["EMPTY_CACHE", "DICTATE", "ALLOC"]
    assert causes(others) == [CALL, REQUEST]
    assert all(kinds(each.steps)[0] == "EMPTY_CACHE" for each in others)


def test_known_call_comes_after_the_free_before_it(entries: Entries) -> None:
    full = ReplayAllocator("30MiB")
    full.malloc(20 * MIB)
    trace = entries(
        (FR, 0, 20 * MIB),
        (FC, 0, 20 * MIB),
        (SF, 0, 20 * MIB),
        (SA, NEW, 30 * MIB),
        (A, NEW, 30 * MIB),
    )
    found = explanations(only_gap(trace, Call(2, StepKind.EMPTY_CACHE, 0)), full, facts(30 * MIB))
    assert found[0].cause is Cause.KNOWN
    assert {tuple(kinds(each.steps)[:2]) for each in found} == {
        ("FREE", "EMPTY_CACHE"),
        ("FREE_REQUEST", "EMPTY_CACHE"),
    }


@pytest.mark.parametrize(("is_more_cached", "likeliest"), [(True, POOL), (False, CALL)])
def test_release_of_private_pools_only_is_a_deleted_mempool(
    is_more_cached: bool, likeliest: Cause, entries: Entries
) -> None:
    """If more memory was cached, empty_cache would have released it too."""
    allocator = ReplayAllocator("1GiB")
    if is_more_cached:
        allocator.free(allocator.malloc(40 * MIB))
    allocator.begin_allocate_to_pool(1)
    held = allocator.malloc(30 * MIB)
    allocator.end_allocate_to_pool(1)
    allocator.free(held)
    gap = only_gap(entries((SF, held, 30 * MIB), (A, 7, 1)))
    in_pool = Gap(
        **{
            name: getattr(gap, name)
            for name in ("free", "completed", "n_early", "before", "obtained", "step")
        },
        released=tuple(each._replace(pool=0) for each in gap.released),
        is_immediate=False,
        scope=None,
    )
    found = explanations(in_pool, allocator, facts())
    assert causes(found)[0] is likeliest
    assert causes(found) in ([POOL, CALL], [CALL, POOL])
    deleted = next(each for each in found if each.cause is POOL)
    assert kinds(deleted.steps) == ["DELETE_POOL", "ALLOC"]


def test_error_although_the_device_had_room_is_a_limit_or_another_process(
    entries: Entries, cached: ReplayAllocator
) -> None:
    gap = only_gap(entries((OOM, 500 * MIB, 200 * MIB)))
    found = explanations(gap, cached, facts(memory=1 << 30))
    assert causes(found) == [REQUEST, Cause.NOTHING]
    assert "ROOM" in kinds(found[1].steps)


def test_assumed_device_size_excludes_other_processes(cached: ReplayAllocator, missed: Gap) -> None:
    found = explanations(missed, cached, facts(memory=1 << 30, is_assumed=True))
    assert not any("ROOM" in kinds(each.steps) for each in found)
