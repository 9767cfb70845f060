"""Scripts depend only on their seed, cover all ops of a release and avoid random results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from allocsim.core import RELEASES, Release, parse_conf
from allocsim.core.hash_order import HashOrder
from allocsim.verify.crosscheck import Tally
from allocsim.verify.generator import make_script
from allocsim.verify.player import play
from allocsim.verify.script import Op, encode_ops

N_SEEDS = 100


def scripts_of(release: Release, **arguments: bool) -> Iterator[list[Op]]:
    return (list(make_script(seed, release, **arguments).ops) for seed in range(N_SEEDS))


def test_seed_determines_the_script() -> None:
    release = RELEASES["2.12"]
    assert make_script(5, release) == make_script(5, release)
    assert make_script(5, release) != make_script(6, release)
    assert make_script(5, release) != make_script(5, RELEASES["2.11"])


@pytest.mark.parametrize("version", ["2.1", "2.6", "2.9", "2.12", "2.15"])
def test_generated_scripts_use_every_option_of_a_release(version: str) -> None:
    release = RELEASES[version]
    tally = Tally()
    for seed in range(N_SEEDS):
        script = make_script(seed, release)
        parse_conf(script.conf, release)
        tally.add(script, version, (), "")
    assert {name for name, _ in tally.rows("option")} - {"none"} == release.options


@pytest.mark.parametrize("version", ["2.1", "2.9", "2.15"])
def test_generated_ops_can_be_encoded_for_the_driver(version: str) -> None:
    for ops in scripts_of(RELEASES[version]):
        encode_ops(ops)


def test_generated_pool_marks_exist_in_the_release() -> None:
    def marked(version: str, at: int, **arguments: bool) -> bool:
        ops = (op for script in scripts_of(RELEASES[version], **arguments) for op in script)
        return any(op[0] == "P" and len(op) > at and op[at] for op in ops)

    no_split, use_on_oom = 3, 4
    assert not marked("2.7", no_split) and not marked("2.7", use_on_oom)
    assert not marked("2.8", no_split) and marked("2.8", use_on_oom)
    assert marked("2.10", no_split) and marked("2.10", use_on_oom)
    assert not marked("2.10", no_split, with_marks=False)


@pytest.mark.parametrize("version", ["2.1", "2.9", "2.15"])
def test_generated_stream_tables_overflow(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An insertion makes the table grow although it has space, and displaced keys before."""
    place = HashOrder._place
    overflows = []

    def counted(table: HashOrder[Any, Any], key: Any) -> bool:
        before = list(table)
        has_room = 2 * (len(table) + 1) <= 1 << table._bits
        is_placed = place(table, key)
        if has_room and not is_placed:
            overflows.append(list(table) != before)
        return is_placed

    monkeypatch.setattr(HashOrder, "_place", counted)
    for seed in range(N_SEEDS):
        play(make_script(seed, RELEASES[version]), version)
    assert len(overflows) > 20
    assert overflows.count(True) > 2


def test_largest_request_is_within_the_given_limit() -> None:
    """Complete PyTorch takes sizes from tensors, which are signed; the allocator takes more."""

    def most(largest: int) -> int:
        scripts = (make_script(seed, RELEASES["2.15"], largest=largest) for seed in range(200))
        return max(int(op[2]) for script in scripts for op in script.ops if op[0] == "a")

    assert most((1 << 64) - 1) == (1 << 63) + 1
    assert most((1 << 63) - 1) == 1 << 60


def test_generated_scripts_delete_pools_if_the_release_can() -> None:
    def asked(version: str, what: str, **arguments: bool) -> bool:
        ops = (op for script in scripts_of(RELEASES[version], **arguments) for op in script)
        return any(op[:2] == ["P", what] for op in ops)

    empty, delete = "v", "l"
    assert not asked("2.5", empty) and not asked("2.5", delete)
    assert not asked("2.7", empty) and asked("2.7", delete)
    assert asked("2.8", empty) and asked("2.15", delete)
    assert not asked("2.8", empty, with_marks=False)


def most_deferred(ops: list[Op]) -> int:
    """Return the largest number of frees deferred between two requests outside all scopes."""
    scopes = deferred = most = 0
    recorded: set[object] = set()
    for op in ops:
        if op[0] == "P":
            scopes += {"b": 1, "e": -1}.get(op[1], 0)
        elif op[0] == "r":
            recorded.add(op[1])
        elif op[0] == "f" and scopes and op[1] in recorded:
            deferred += 1
        elif not scopes and (op[0] == "e" or (op[0] == "a" and 0 < op[2] < 1 << 60)):
            deferred = 0
        most = max(most, deferred)
    return most


def test_one_free_at_a_time_is_deferred_if_their_order_is_random() -> None:
    """Semantics 12.3a.  A stray end or begin, one op in hundreds, may open a scope unnoticed."""
    release = RELEASES["2.11"]
    tamed = [most_deferred(ops) for ops in scripts_of(release)]
    assert max(tamed) == 1 and tamed.count(1) >= 3
    assert max(most_deferred(ops) for ops in scripts_of(release, is_reproducible=False)) > 1
    assert max(most_deferred(ops) for ops in scripts_of(RELEASES["2.8"])) > 1


def test_streams_are_recorded_only_inside_or_only_outside_scopes() -> None:
    """Semantics 12.3b."""

    def places(ops: list[Op]) -> set[bool]:
        scopes, found = 0, set()
        for op in ops:
            if op[0] == "P" and len(op) > 1:
                scopes += {"b": 1, "e": -1}.get(op[1], 0)
            elif op[0] == "r":
                found.add(scopes > 0)
        return found

    remembering = [places(ops) for ops in scripts_of(RELEASES["2.6"])]
    assert {True} in remembering and {False} in remembering
    assert sum(len(place) == 2 for place in remembering) <= 1
    assert any(len(places(ops)) == 2 for ops in scripts_of(RELEASES["2.14"]))


@pytest.mark.parametrize("version", ["2.1", "2.9", "2.15"])
def test_generated_scripts_mostly_run_to_their_end(version: str) -> None:
    stops = [play(make_script(seed, RELEASES[version]), version).stopped for seed in range(30)]
    assert sum(stop is not None for stop in stops) < 8
