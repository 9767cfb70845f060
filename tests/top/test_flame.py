"""Flame graph of a moment: every byte is in the boxes of its stack, exactly once."""

from __future__ import annotations

from pathlib import Path

import pytest

from allocsim import load, top
from allocsim.analysis.top import FlameBox, FlameGraph, Holding, Top, flame_of
from allocsim.ownership import Moment
from allocsim.recording import Frame

TRACES = Path(__file__).parents[2] / "traces"


def answer(*holdings: Holding) -> Top:
    """Return an answer with these holdings."""
    categories: dict[str, int] = {}
    for holding in holdings:
        categories[holding.category] = categories.get(holding.category, 0) + holding.bytes
    return Top(
        path="run.npz",
        device=0,
        at=Moment(None, "end"),
        by="line",
        allocated_bytes=sum(holding.bytes for holding in holdings),
        blocks=sum(holding.blocks for holding in holdings),
        pending_bytes=0,
        pending_blocks=0,
        rows=(),
        categories=categories,
        holdings=holdings,
        notes=(),
    )


def held(size: int, *names: str, category: str = "parameters", silent: str = "") -> Holding:
    """Return a block of `size` bytes; `names` are its functions, outermost first."""
    frames = tuple(Frame("/home/me/net.py", name, 1) for name in reversed(names))
    return Holding(frames, silent, category, size, 1)


def result(flame: FlameGraph) -> list[tuple[int, int, int, str]]:
    """Return depth, start, bytes and function of each box."""
    return [(b.depth, b.start, b.bytes, b.name.rpartition(" ")[2]) for b in flame.boxes]


def children(flame: FlameGraph, box: FlameBox) -> list[FlameBox]:
    """Return the boxes of a box's callees."""
    end = box.start + box.bytes
    return [b for b in flame.boxes if b.depth == box.depth + 1 and box.start <= b.start < end]


def test_stacks_are_merged_from_the_outermost_frame_on() -> None:
    flame = flame_of(
        answer(held(100, "main", "a", "b"), held(300, "main", "c"), held(50, "main", "a"))
    )
    assert result(flame) == [
        (0, 0, 450, "main"),
        (1, 0, 300, "c"),
        (1, 300, 150, "a"),
        (2, 300, 100, "b"),
    ]
    assert flame.rows == 3


def test_function_with_two_callers_has_two_boxes() -> None:
    flame = flame_of(answer(held(2, "main", "f", "g"), held(1, "main", "g")))
    assert [box.bytes for box in flame.boxes if box.name.endswith(" g")] == [1, 2]


def test_files_of_one_name_in_two_folders_are_two_frames() -> None:
    ours, theirs = (Frame(f"/{folder}/linear.py", "forward", 9) for folder in ("ours", "theirs"))
    flame = flame_of(
        answer(Holding((ours,), "", "inputs", 2, 1), Holding((theirs,), "", "inputs", 1, 1))
    )
    assert [box.file for box in flame.boxes] == ["/ours/linear.py", "/theirs/linear.py"]


def test_narrow_frames_are_folded_into_one_box() -> None:
    flame = flame_of(
        answer(held(1000, "main", "big"), held(1, "main", "x", "y"), held(2, "main", "z"))
    )
    other = flame.boxes[-1]
    assert (other.name, other.depth, other.start, other.bytes) == ("other", 1, 1000, 3)
    assert (other.blocks, other.folded) == (2, 2)


def test_deep_frames_are_folded_into_the_last_row() -> None:
    deep = [f"f{depth}" for depth in range(9)]
    flame = flame_of(answer(held(7, *deep)), most_rows=4)
    assert result(flame)[-1] == (3, 0, 7, "other")
    assert flame.rows == 4


def test_a_frame_is_of_a_category_if_nine_tenths_of_it_are() -> None:
    flame = flame_of(
        answer(
            held(90, "main", "a"),
            held(10, "main", "b", category="inputs"),
            held(60, "more", "c", category="caches"),
            held(40, "more", "d"),
        )
    )
    assert {box.name.removeprefix("net.py:1 "): box.category for box in flame.boxes} == {
        "main": "parameters", "more": "", "a": "parameters", "b": "inputs", "c": "caches",
        "d": "parameters",
    }  # fmt: skip


def test_memory_without_a_stack_has_a_box_of_its_own() -> None:
    flame = flame_of(answer(held(5), held(3, silent="from before the recording")))
    assert [box.name for box in flame.boxes] == ["no stack recorded", "from before the recording"]


def test_flame_graph_without_memory_has_no_box() -> None:
    flame = flame_of(answer())
    assert (flame.boxes, flame.rows) == ((), 0)


@pytest.mark.parametrize("least_share", [0, 1 / 400, 1 / 20])
def test_the_boxes_of_a_recording_tile_it(least_share: float) -> None:
    found = top(load(TRACES / "counted" / "llama-torch2.15.npz.gz"))
    flame = flame_of(found, least_share=least_share)
    assert sum(box.bytes for box in flame.boxes if not box.depth) == found.allocated_bytes
    for box in flame.boxes:
        inside = children(flame, box)
        assert sum(child.bytes for child in inside) <= box.bytes
        ends = [box.start, *(child.start + child.bytes for child in inside)]
        assert [child.start for child in inside] == ends[:-1], "side by side, from the left"
        assert not (box.folded and inside)
    assert all(box.bytes >= least_share * flame.bytes for box in flame.boxes if not box.folded)
