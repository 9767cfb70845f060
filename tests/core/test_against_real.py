"""Random scripts through the core and through the compiled allocator of each available release.

Every address, statistic, segment, entry and text is equal, and so is the op where they stop.
Skipped if the cache contains no release; `python -m allocsim.phantom fetch` fills it.
"""

from __future__ import annotations

import pytest

from allocsim.core import NEWEST, RELEASES, ReplayAllocator
from allocsim.core.fast_path import LONG
from allocsim.errors import UnavailableError, UpstreamAssertionError
from allocsim.units import GIB, MIB
from allocsim.verify import RealAllocator, Script
from allocsim.verify.comparison import judge
from allocsim.verify.crosscheck import WheelSource
from allocsim.verify.player import play
from allocsim.verify.script import Op
from benchmarks.scripts import many_live
from tests.core.test_fast_path import as_step

N_SCRIPTS = 120


@pytest.mark.slow
@pytest.mark.parametrize("torch", RELEASES)
def test_random_scripts_come_out_as_in_the_real_allocator(torch: str) -> None:
    try:
        real = RealAllocator(torch)
    except UnavailableError as error:
        pytest.skip(str(error))
    source = WheelSource(torch)
    verdicts = {seed: judge(real, source.script(real, seed)) for seed in range(N_SCRIPTS)}
    differing = {s: str(v.divergence.difference) for s, v in verdicts.items() if v.divergence}
    assert differing == {}


@pytest.mark.slow
@pytest.mark.parametrize("conf", ["", "max_split_size_mb:24", "expandable_segments:True"])
def test_rows_of_forty_thousand_live_blocks_stand_where_the_real_allocator_puts_them(
    conf: str,
) -> None:
    """Random scripts never have thousands of free blocks to search, move and merge."""
    try:
        real = RealAllocator(NEWEST)
    except UnavailableError as error:
        pytest.skip(str(error))
    ops: list[Op] = [list(op[: 4 if op[0] == "a" else 2]) for op in many_live(200_000)]
    script = Script(ops, 256 * GIB, conf)
    a = ReplayAllocator(script.device_memory, conf, address_policy=script.address_policy)
    places: dict[int, int] = {}
    n_single = 0
    for start in range(0, len(ops), 4096):
        rows = iter([as_step(op) for op in ops[start : start + 4096]])
        while (left := a.play(rows, {}, [])) is not None:
            n_single += 1
            _, name, size, stream = left
            ptr = a.malloc(size, stream)
            assert ptr is not None
            places[name] = a.give_name(ptr, name).ptr
        places |= {name: block.ptr for name, block in a.named_blocks.items()}
    a.check()
    answered = real.run(script).addresses
    names = [op[1] for op in ops if op[0] == "a"]
    by_name = dict(zip(names, answered, strict=True))
    shift = by_name[names[0]] - places[names[0]]
    assert {name: by_name[name] - shift for name in places} == places
    assert len(places) > 80_000
    assert n_single < 20_000
    assert len(a.heap.small) > LONG


@pytest.mark.parametrize("torch", RELEASES)
def test_requests_beyond_all_reason(torch: str) -> None:
    """Results of the compiled allocators of 2.1, 2.6, 2.8, 2.14 and 2.15.

    Each attempt reserves a segment, which 2.15 destroys again; nothing is mapped (4.2, 12.7).
    """
    ops: list[Op] = [
        ["a", 1, (1 << 60) - 1, 0],
        ["a", 2, 3 * MIB, 0],
        ["a", 3, (1 << 60) - 1, 0],
        ["a", 4, 300 * MIB, 0],
        ["a", 5, 3 * MIB, 0],
    ]
    begin = 600 * MIB if RELEASES[torch].short_segment_is_destroyed else 0
    for conf, first in (("", 0), ("expandable_segments:True", begin)):
        outcome = play(Script(ops, 256 * MIB, conf), torch)
        assert outcome.addresses == [None, first, None, None, first + 3 * MIB]
        failed = [entry[2] for entry in outcome.trace if entry[0] == "oom"]
        assert failed == [1 << 60, 1 << 60, 300 * MIB]
        assert outcome.stats["reserved_bytes.all"] == [20 * MIB, 20 * MIB, 20 * MIB, 0]
        assert "Tried to allocate 1073741824.00 GiB" in outcome.messages[0]


def test_segments_miscounted_by_mappings_end_in_an_assertion() -> None:
    """Found by a cross-check of 2.14 and observed on the compiled allocators of 2.5 to 2.15.

    The pool counts a small segment, a large one and one mapping.  Two unmappings of that mapping
    subtract two and the small segment a third, so that the large one is one too many (12.6).
    """
    ops: list[Op] = [
        ["P", "b", 1],
        ["a", 1, 1000, 0],
        ["a", 2, 30 * MIB, 0],
        ["c", "expandable_segments:True"],
        ["a", 3, 30 * MIB, 0],
        ["a", 4, 5 * MIB, 0],
        ["P", "e", 1],
        ["P", "r", 1],
        *(["f", 3], ["e"]),
        *(["f", 4], ["e"]),
        *(["f", 1], ["f", 2], ["e"]),
    ]
    for version, release in RELEASES.items():
        outcome = play(Script(ops, GIB), version)
        if not release.expandable_private_pools:
            assert outcome.stopped is None
            continue
        assert outcome.stopped is not None
        assert outcome.stopped[0] == len(ops) - 1
        assert isinstance(outcome.stopped[1], UpstreamAssertionError)
        assert outcome.trace[-2][0] == "segment_free"


@pytest.mark.parametrize("in_rows", [False, True])
@pytest.mark.parametrize("torch", RELEASES)
def test_a_table_of_streams_that_overflows_keeps_the_displaced_streams_in_their_new_slots(
    torch: str, in_rows: bool
) -> None:
    """Observed on the compiled allocators of 2.1, 2.6, 2.9, 2.11, 2.12 and 2.15 (12.1).

    The last request waits for five blocks of eight streams.  They complete in the order of a table
    that grew when a displaced stream came too far from its slot.
    """
    handles = {
        **{1: 13229992672, 2: 14762970688, 3: 4261457168, 4: 16834447968, 5: 10386396080},
        **{6: 15805870672, 7: 3545237872, 8: 13524030128, 9: 1322829616, 10: 16394960896},
        **{11: 5483583152},
    }
    ops: list[Op] = [
        *(["a", 33, 10486271, 1], ["a", 98, 20971009, 2], ["a", 102, 546990, 0]),
        *(["a", 105, 20971520, 3], ["r", 98, 4], ["r", 105, 5], ["r", 102, 6], ["r", 102, 7]),
        *(["r", 105, 0], ["f", 98], ["f", 102], ["a", 135, 4294967296, 5]),
        *(["a", 143, 3509825260, 0], ["f", 105], ["a", 157, 2147483648, 8]),
        *(["a", 163, 3509825260, 9], ["a", 168, 156237311, 10], ["a", 169, 166, 0]),
        *(["r", 169, 9], ["r", 168, 2], ["r", 168, 11], ["r", 169, 8], ["f", 168], ["f", 169]),
        ["a", 175, 3509825260, 0],
    ]
    script = Script(ops, 17_181_966_336, handles=handles)
    outcome = play(script, torch, in_rows=in_rows)
    completed = [entry[1:] for entry in outcome.trace if entry[0] == "free_completed"]
    assert completed == [
        [34101760, 166, 0],
        [35651584, 20971520, 3],
        [12582912, 20971009, 2],
        [13520338944, 156237311, 10],
        [33554432, 546990, 0],
    ]


REFUSING = [release for release in RELEASES if "large_segment_size_mb" in RELEASES[release].options]


@pytest.mark.parametrize("torch", REFUSING)
def test_the_driver_refuses_handles_that_are_not_a_multiple_of_two_mebibytes(torch: str) -> None:
    """Observed on 2.11 on an H200, and on 2.11, 2.12 and 2.15 over the phantom GPU (4.3).

    PyTorch raises the error of the driver at once: no retry, no `oom` entry, nothing released.  The
    new segment stays without memory; small requests and old segments still work.
    """
    ops: list[Op] = [
        ["a", 1, 30 * MIB, 0],  # mapped by handles of 20 MiB
        ["f", 1],
        ["c", "expandable_segments:True,large_segment_size_mb:13"],
        ["a", 2, 5 * MIB, 0],  # the free block
        ["a", 3, 50 * MIB, 0],  # more handles of the old segment
        ["a", 4, 5 * MIB, 1],  # a new segment
        ["a", 5, 1000, 1],
        ["a", 6, 5 * MIB, 1],
        ["e"],
        ["c", "expandable_segments:True,large_segment_size_mb:20"],
        ["a", 7, 5 * MIB, 1],  # unmapped space of the segment with handles of 13 MiB
    ]
    outcome = play(Script(ops, GIB, "expandable_segments:True"), torch)
    space = 1160 * MIB  # 9/8 of the device in handles of 20 MiB
    small = space + 1157 * MIB + MIB  # after that of handles of 13 MiB
    assert outcome.addresses == [0, 0, 5 * MIB, None, small, None, None]
    assert outcome.messages == ["CUDA driver error: invalid argument"] * 3
    assert not any(entry[0] == "oom" for entry in outcome.trace)
    assert outcome.stats["num_alloc_retries"] == 0
    assert outcome.stats["num_ooms"] == 0
    assert outcome.stats["reserved_bytes.all"] == [62 * MIB, 62 * MIB, 62 * MIB, 0]


@pytest.mark.parametrize("conf", ["large_segment_size_mb:13", "expandable_segments:True"])
def test_without_both_options_no_handle_is_refused(conf: str) -> None:
    ops: list[Op] = [["a", 1, 5 * MIB, 0], ["a", 2, 30 * MIB, 0]]
    assert play(Script(ops, GIB, conf), "2.15").messages == []
