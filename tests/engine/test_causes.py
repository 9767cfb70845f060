"""Why memory was given back: which causes come into question, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from allocsim import CachingAllocator
from allocsim.engine.causes import Cause, Explanation, explanations, plain_explanation
from allocsim.engine.gaps import Call, Gap, classify, gaps_of
from allocsim.engine.likelihood import Facts
from allocsim.engine.plan import Planned, StepKind
from allocsim.trace import Action, Trace, pools_of
from allocsim.units import MIB

A, FR, FC = Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED
SA, SF, OOM = Action.SEGMENT_ALLOC, Action.SEGMENT_FREE, Action.OOM

Entries = Callable[..., Trace]
NEW = 1 << 40
"""Where the next segment lies."""

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
    """The causes in their order, each once."""
    return list(dict.fromkeys(each.cause for each in found))


def kinds(steps: Iterable[Planned]) -> list[str]:
    return [StepKind(kind).name for kind, *_ in steps]


@pytest.fixture
def cached() -> CachingAllocator:
    """30 MiB cached at address 0, of a device of a GiB."""
    allocator = CachingAllocator("1GiB")
    allocator.free(allocator.malloc(30 * MIB))
    return allocator


@pytest.fixture
def missed(entries: Entries) -> Gap:
    """30 MiB were given back, and 40 MiB obtained for a request."""
    return only_gap(entries((SF, 0, 30 * MIB), (SA, NEW, 40 * MIB), (A, NEW, 40 * MIB)))


def test_without_an_effect_nothing_is_guessed(entries: Entries, cached: CachingAllocator) -> None:
    gap = only_gap(entries((SA, NEW, 40 * MIB), (FC, 0, 1), (A, NEW, 40 * MIB)))
    (plain,) = explanations(gap, cached, facts())
    assert plain == plain_explanation(gap)
    assert kinds(plain.steps) == ["FREE_COMPLETE", "DICTATE", "ALLOC"]


def test_a_request_that_found_a_block_was_refused_nothing(
    entries: Entries, cached: CachingAllocator
) -> None:
    gap = only_gap(entries((SF, 0, 30 * MIB), (A, 8 * MIB, 1)))
    (call,) = explanations(gap, cached, facts(memory=30 * MIB))
    assert kinds(call.steps) == ["EMPTY_CACHE", "ALLOC"]


def test_at_the_end_only_the_program_can_have_done_it(
    entries: Entries, cached: CachingAllocator
) -> None:
    gap = only_gap(entries((SF, 0, 30 * MIB)))
    assert causes(explanations(gap, cached, facts())) == [CALL]


def test_a_device_with_room_refuses_nothing(cached: CachingAllocator, missed: Gap) -> None:
    found = explanations(missed, cached, facts(memory=1 << 30))
    assert causes(found) == [CALL, REQUEST]


def test_a_device_without_room_refuses(missed: Gap) -> None:
    small = CachingAllocator("60MiB")
    small.free(small.malloc(30 * MIB))
    found = explanations(missed, small, facts(memory=60 * MIB))
    assert causes(found) == [REQUEST, CALL]
    assert kinds(found[0].steps) == ["DICTATE", "ALLOC"]
    assert found[0].refused == 70 * MIB


def test_a_device_that_held_as_much_had_room(cached: CachingAllocator, missed: Gap) -> None:
    """30 MiB were held and 40 wanted: it held 70 at some time, or it never did."""
    assert causes(explanations(missed, cached, facts(most=70 * MIB))) == [CALL, REQUEST]
    assert causes(explanations(missed, cached, facts(most=69 * MIB))) == [REQUEST, CALL]


def test_a_python_stack_that_names_empty_cache_decides(
    cached: CachingAllocator, missed: Gap
) -> None:
    found = explanations(missed, cached, facts(most=40 * MIB, calls=[0]))
    assert causes(found) == [CALL, REQUEST]


def test_a_device_of_unknown_size_had_room_for_less_than_was_wanted(
    cached: CachingAllocator, missed: Gap
) -> None:
    """Each request that was refused says so, and sizes between are tried: 68 is 70 less a page."""
    found = explanations(missed, cached, facts(most=50 * MIB))
    rooms = [
        [size for kind, _, _, size, _ in each.steps if kind == StepKind.ROOM]
        for each in found
        if each.cause is REQUEST
    ]
    assert rooms == [[50 * MIB, -1], [40 * MIB, -1], [68 * MIB, -1]]


def test_garbage_is_collected_before_anything_is_refused(missed: Gap) -> None:
    """Above the threshold a request collects; a call is likelier than a device of another size."""
    conf = "garbage_collection_threshold:0.5,per_process_memory_fraction:0.5"
    collecting = CachingAllocator("100MiB", conf)
    collecting.free(collecting.malloc(30 * MIB))
    found = explanations(missed, collecting, facts(memory=100 * MIB, most=70 * MIB))
    assert [each.cause for each in found[:2]] == [REQUEST, CALL]
    assert kinds(found[0].steps) == ["DICTATE", "ALLOC"]
    assert "ROOM" in kinds(found[2].steps)


def test_a_request_beyond_the_programs_own_limit_is_refused_with_room_on_the_device(
    missed: Gap,
) -> None:
    """60 of 200 MiB are allowed, 30 are held and 40 wanted."""
    limited = CachingAllocator("200MiB", "per_process_memory_fraction:0.3")
    limited.free(limited.malloc(30 * MIB))
    found = explanations(missed, limited, facts(memory=200 * MIB, most=70 * MIB))
    assert [each.cause for each in found[:2]] == [REQUEST, CALL]
    assert kinds(found[0].steps) == ["DICTATE", "ALLOC"]


@pytest.mark.parametrize("kind", [StepKind.FRACTION, StepKind.SETTINGS])
def test_what_the_program_has_just_set_may_be_why_its_request_gave_memory_back(
    kind: StepKind, entries: Entries, cached: CachingAllocator
) -> None:
    """The device had room, and before the call nothing limited the program."""
    trace = entries((SF, 0, 30 * MIB), (SA, NEW, 40 * MIB), (A, NEW, 40 * MIB))
    gap = only_gap(trace, Call(0, kind, 0))
    assert causes(explanations(gap, cached, facts(memory=1 << 30))) == [REQUEST, CALL]


def test_a_block_that_would_do_before_other_rounding_says_nothing(
    entries: Entries, cached: CachingAllocator
) -> None:
    """28 MiB find the 30 that are cached, but rounded to 32 they find none."""
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
def test_a_segments_room_may_serve_what_no_free_block_may(
    conf: str, expected: list[Cause], entries: Entries
) -> None:
    """A free block of 40 MiB is too good for 2 MiB; the segment that it lies in has room there."""
    limited = CachingAllocator("100MiB", f"{conf},per_process_memory_fraction:0.75")
    for size in (40, 30):
        limited.free(limited.malloc(size * MIB, 4096 * (size == 30)))
    gap = only_gap(entries((Action.SEGMENT_UNMAP, NEW, 30 * MIB), (A, 0, 2 * MIB)))
    assert causes(explanations(gap, limited, facts(memory=100 * MIB))) == expected


def waiting() -> tuple[CachingAllocator, int, int]:
    """A device on which two frees are under way, of 30 and of 40 MiB, with their addresses."""
    full = CachingAllocator("100MiB")
    first, second = full.malloc(30 * MIB), full.malloc(40 * MIB)
    assert first is not None
    assert second is not None
    full.request_free(first)
    full.request_free(second)
    return full, first, second


def test_frees_that_a_full_device_waited_for_complete_after_the_request(entries: Entries) -> None:
    """In the order of their entries, which only the streams' events had known."""
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
def test_a_block_too_good_for_the_request_is_given_back_without_a_wait(
    least: int, stream: int, likeliest: list[str], entries: Entries
) -> None:
    """What max_split_size keeps whole goes before anything is waited for (1.8)."""
    full = CachingAllocator("50MiB", f"max_split_size_mb:{least}")
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


def test_the_free_right_before_was_waited_for_if_it_would_have_done(entries: Entries) -> None:
    """Had it been complete, the request would have taken its block."""
    full = CachingAllocator("30MiB")
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
def test_a_free_that_would_not_have_done_was_complete(
    freed: int, stream: int, entries: Entries
) -> None:
    """It is on another stream, or too small, so that nothing says that it was waited for."""
    full = CachingAllocator("30MiB")
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
def test_a_free_whose_block_the_request_leaves_alone_was_complete(
    freed: int, wanted: int, conf: str, entries: Entries
) -> None:
    full = CachingAllocator("70MiB", conf)
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


def test_a_free_whose_block_would_have_done_before_settings_changed_was_complete(
    entries: Entries,
) -> None:
    """Under the new ones it may be too good for the request (a random program's, seed 5006674)."""
    full = CachingAllocator("70MiB")
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


def test_a_segments_room_may_serve_a_request_under_options_just_set(
    entries: Entries, cached: CachingAllocator
) -> None:
    """Before, a request that found a block was refused nothing (seed 6000027)."""
    trace = entries((SF, 0, 30 * MIB), (A, 8 * MIB, 1))
    gap = only_gap(trace, Call(0, StepKind.SETTINGS, 0))
    assert causes(explanations(gap, cached, facts(memory=1 << 30))) == [REQUEST, CALL]
    assert causes(explanations(only_gap(trace), cached, facts(memory=1 << 30))) == [CALL]


def test_what_an_expandable_segment_had_room_for_may_have_been_refused_first(
    entries: Entries,
) -> None:
    """A request that no free block serves asks for a handle before it is given what is left: where
    the device has none, no call is needed (random programs', seeds 5012680 and 6508131)."""
    conf = "expandable_segments:True,max_split_size_mb:22"
    gap = only_gap(entries((Action.SEGMENT_UNMAP, 20 * MIB, 60 * MIB), (A, 0, 10 * MIB)))
    for memory, expected in ((110 * MIB, [REQUEST, CALL]), (130 * MIB, [CALL, REQUEST])):
        allocator = CachingAllocator(memory, conf)
        too_good = allocator.malloc(80 * MIB)
        allocator.malloc(10 * MIB + 1)  # of 20 MiB, 512 bytes too few are left
        allocator.free(too_good)
        assert causes(explanations(gap, allocator, facts(memory))) == expected


def test_a_free_that_completed_alone_was_not_waited_for(entries: Entries) -> None:
    """A full device waits for all of them, and another is still under way."""
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


def test_what_was_obtained_before_the_release_took_room_too(
    cached: CachingAllocator, entries: Entries
) -> None:
    """An expandable segment grew by 20 MiB before the driver refused 40 more of it."""
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


def test_a_call_that_is_known_is_made_in_every_explanation(
    cached: CachingAllocator, entries: Entries
) -> None:
    """It gave the memory back, most likely; else it was made before the request all the same."""
    trace = entries((SF, 0, 30 * MIB), (SA, NEW, 40 * MIB), (A, NEW, 40 * MIB))
    gap = only_gap(trace, Call(0, StepKind.EMPTY_CACHE, 0))
    known, *others = explanations(gap, cached, facts(memory=60 * MIB))
    assert known.cause is Cause.KNOWN
    assert kinds(known.steps) == ["EMPTY_CACHE", "DICTATE", "ALLOC"]
    assert causes(others) == [CALL, REQUEST]
    assert all(kinds(each.steps)[0] == "EMPTY_CACHE" for each in others)


def test_a_call_that_is_known_comes_after_the_free_before_it(entries: Entries) -> None:
    full = CachingAllocator("30MiB")
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
def test_private_pools_alone_give_back(
    is_more_cached: bool, likeliest: Cause, entries: Entries
) -> None:
    """Where more was cached, empty_cache would have taken that too: the MemPool was deleted."""
    allocator = CachingAllocator("1GiB")
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


def test_an_error_although_the_device_had_room_is_a_limit_or_another_process(
    entries: Entries, cached: CachingAllocator
) -> None:
    gap = only_gap(entries((OOM, 500 * MIB, 200 * MIB)))
    found = explanations(gap, cached, facts(memory=1 << 30))
    assert causes(found) == [REQUEST, Cause.NOTHING]
    assert "ROOM" in kinds(found[1].steps)


def test_a_size_that_is_only_assumed_leaves_no_other_process(
    cached: CachingAllocator, missed: Gap
) -> None:
    found = explanations(missed, cached, facts(memory=1 << 30, is_assumed=True))
    assert not any("ROOM" in kinds(each.steps) for each in found)
