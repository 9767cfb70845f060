"""Conversion of entries to columns that share equal stacks and texts."""

from __future__ import annotations

from typing import Any

from allocsim.phantom.at_exit import columns_of


def entries(count: int) -> list[dict[str, Any]]:
    """Return entries as PyTorch creates them: shared frames per block, a new string per text."""
    frames = [{"name": "f", "filename": "a.py", "line": line} for line in range(3)]
    return [
        {"action": "alloc", "addr": n, "frames": list(frames[n % 2 :]), "user_metadata": f"{n % 2}"}
        for n in range(count)
    ]


def test_columns_of_have_an_item_per_entry() -> None:
    made = [*entries(4), {"action": "oom", "device_free": 7}]
    columns = columns_of(made)
    rows = [{name: column[n] for name, column in columns.items()} for n in range(5)]
    assert [{k: v for k, v in row.items() if v is not None} for row in rows] == made
    assert columns_of([]) == {}
    assert columns_of([{"action": "alloc"}]) == {"action": ["alloc"]}


def test_columns_of_share_equal_values() -> None:
    columns = columns_of(entries(6))
    for name in ("frames", "user_metadata"):
        assert len(set(map(id, columns[name]))) == 2, name
    assert columns["frames"][0] is columns["frames"][4]
