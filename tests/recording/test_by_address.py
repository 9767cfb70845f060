"""Turns by address equal the block entries, with a free in two entries counted once."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from allocsim.recording import Action, Turn
from allocsim.recording.trace import ByAddress

Row = tuple[Action, int]
ROWS = st.lists(st.tuples(st.sampled_from([*Action]), st.integers(0, 3)), max_size=12)


def of(rows: list[Row]) -> ByAddress:
    action = np.array([action for action, _ in rows], dtype=np.uint8)
    return ByAddress.of(action, np.array([512 * place for _, place in rows], dtype=np.uint64))


def one_by_one(rows: list[Row], first: int = 0) -> list[tuple[int, int, Turn]]:
    """Return address, entry and kind of each turn (trace.py), sorted by address."""
    turns: list[tuple[int, int, Turn]] = []
    for entry, (action, place) in enumerate(rows):
        follows = entry > first and rows[entry - 1] == (Action.FREE_REQUESTED, place)
        if entry < first or action > Action.FREE_COMPLETED:
            continue
        if action == Action.FREE_COMPLETED and follows:
            turns[-1] = (512 * place, entry, Turn.FREE)
        else:
            turns.append((512 * place, entry, Turn(action)))
    return sorted(turns)


def rows_of(turns: ByAddress) -> list[tuple[int, int, Turn]]:
    columns = (turns.addr.tolist(), turns.entry.tolist(), map(Turn, turns.kind.tolist()))
    return list(zip(*columns, strict=True))


@given(ROWS)
def test_turns_are_the_entries_by_address(rows: list[Row]) -> None:
    turns, expected = of(rows), one_by_one(rows)
    assert len(turns) == len(expected)
    assert rows_of(turns) == expected
    addr = [row[0] for row in expected]
    assert turns.goes_on.tolist() == [
        addr[i : i + 1] == addr[i + 1 : i + 2] for i in range(len(addr))
    ]


@given(ROWS, st.integers(0, 12))
def test_turns_since_an_entry_are_those_of_later_entries(rows: list[Row], first: int) -> None:
    """A free that is cut in two is only a completion."""
    assert rows_of(of(rows).since(first)) == one_by_one(rows, first)
