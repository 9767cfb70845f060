"""Ops are counted by operation, by the options in effect and by the features that they use."""

from __future__ import annotations

from allocsim.units import GIB
from allocsim.verify import Script
from allocsim.verify.crosscheck import Tally
from allocsim.verify.script import Op

CONF = "max_split_size_mb:64,expandable_segments_reserve_by_class:[a:1G,b:2],backend:native"


def test_tally_counts_a_script() -> None:
    ops: list[Op] = [
        ["a", 1, 512, 0],
        ["r", 1, 1],
        ["P", "b", 1, 1, 0],
        ["a", 2, 512, 0],
        ["P", "b", 2, 0, 1],
        ["a", 3, 1 << 60, 0],
        ["f", 1],
        ["e"],
        ["P", "e", 2],
        ["P", "e", 1],
        ["a", 4, 0, 0],
        ["c", "expandable_segments:True"],
        ["a", 5, 512, 0],
    ]
    tally = Tally()
    tally.add(Script(ops, GIB, CONF), "2.15", [0, 512, None, None, 1024], "equal")
    counts = tally.as_dict()
    assert counts["operation"] == {
        "malloc": 5,
        "begin_allocate_to_pool": 2,
        "end_allocate_to_pool": 2,
        "empty_cache": 1,
        "free": 1,
        "record_stream": 1,
        "set_allocator_settings": 1,
    }
    assert counts["feature"] == {
        "empty_cache in a scope": 1,
        "free that may wait, in a scope": 1,
        "malloc in a scope": 1,
        "malloc in nested scopes": 1,
        "malloc out of memory": 1,
        "malloc with expandable segments outside scopes": 1,
        "pool marked no_split": 1,
        "pool marked use_on_oom": 1,
        "record_stream outside scopes": 1,
    }
    assert counts["option"] == {
        "backend": 13,
        "expandable_segments_reserve_by_class": 13,
        "max_split_size_mb": 11,
        "expandable_segments": 2,
    }
    assert counts["release"] == {"2.15": 13}
    assert counts["device"] == {"bump addresses": 13}
    assert counts["script"] == {"equal": 1}


def test_tallies_are_added() -> None:
    one, other = Tally(), Tally()
    for tally in (one, other):
        tally.add(Script([["S"]], GIB, "", "firstfit"), "2.1", [], "equal")
    one += other
    assert one.ops == 2
    assert one.rows("option") == [("none", 2)]
    assert one.rows("device") == [("firstfit addresses", 2)]
