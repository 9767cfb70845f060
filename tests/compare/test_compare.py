"""Comparison of two runs: parts that add up, and matched requests."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allocsim import CachingAllocator, compare, compare_settings, load
from allocsim.analysis.compare import Comparison
from allocsim.errors import ConfigError, RecordingError
from allocsim.recording import Recording
from allocsim.units import MIB

TRACES = Path(__file__).parents[2] / "traces"
SIZED = TRACES / "sized"
PEAKS: dict[str, Any] = json.loads((SIZED / "peaks.json").read_text())
"""Counts of real PyTorch for the programs in traces/sized."""

LONG = (
    ("sized/batch2", "sized/batch2-checkpointing"),
    ("recordings/lora_finetuning-default-torch2.6", "recordings/lora_finetuning-default-torch2.15"),
    ("recordings/gpt2_training-oom-torch2.15", "recordings/gpt2_training-default-torch2.15"),
)
PAIRS = [
    ("sized/layers2", "sized/layers3"),
    *(pytest.param(pair, marks=pytest.mark.slow) for pair in LONG),
]


@lru_cache
def recorded(name: str) -> Recording:
    return load(TRACES / f"{name}.npz.gz")


def adds_up(found: Comparison) -> None:
    """Check that all parts add up."""
    changes = found.changes
    assert sum(each.bytes for each in changes) == found.allocated_change
    assert sum(each.a_bytes for each in changes) == found.a.allocated_bytes
    assert sum(each.b_bytes for each in changes) == found.b.allocated_bytes
    assert all(each.requested + each.rounding == each.bytes for each in changes)
    assert all(each.resized + each.more == each.bytes for each in changes)
    assert found.parts.reserved == found.reserved_change


@pytest.mark.parametrize("by", ["line", "pool"])
def test_compare_gives_the_difference_that_real_pytorch_counted(by: str) -> None:
    found = compare(recorded("sized/batch2"), recorded("sized/batch3"), by=by)
    adds_up(found)
    for side, name in ((found.a, "batch2"), (found.b, "batch3")):
        assert side.reserved.reserved == PEAKS[name]["reserved_bytes.all.peak"]
        assert side.allocated_bytes == PEAKS[name]["allocated_bytes.all.peak"]
        assert side.reserved.requested + side.reserved.rounding == side.allocated_bytes


def test_larger_batch_changes_sizes_but_not_the_number_of_blocks() -> None:
    found = compare(recorded("sized/batch2"), recorded("sized/batch3"), by="category")
    by_category = {each.owner: each for each in found.changes}
    kept = by_category["activations kept for backward"]
    assert kept.status == "larger"
    assert kept.resized == kept.bytes > 0
    assert by_category["parameters"].status == "same"
    assert by_category["optimizer state"].requested == 0, "the last of a segment is not split"


def test_additional_layer_adds_blocks_of_equal_sizes() -> None:
    found = compare(recorded("sized/layers2"), recorded("sized/layers3"), by="category")
    parameters = next(each for each in found.changes if each.owner == "parameters")
    assert (parameters.resized, parameters.more) == (0, parameters.bytes)
    assert parameters.b_blocks > parameters.a_blocks


@pytest.mark.slow
def test_checkpointing_keeps_fewer_activations() -> None:
    pair = recorded("sized/batch2"), recorded("sized/batch2-checkpointing")
    first = compare(*pair, by="category").changes[0]
    assert (first.owner, first.status) == ("activations kept for backward", "smaller")


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_comparison_of_b_with_a_has_the_opposite_signs(pair: tuple[str, str]) -> None:
    a, b = map(recorded, pair)
    there, back = compare(a, b), compare(b, a)
    adds_up(there)
    adds_up(back)
    assert there.reserved_change == -back.reserved_change
    assert sorted(each.bytes for each in there.changes) == sorted(
        -each.bytes for each in back.changes
    )


def test_comparison_of_a_recording_with_itself_has_no_change() -> None:
    found = compare(recorded("sized/layers2"), recorded("sized/layers2"))
    assert found.reserved_change == found.allocated_change == 0
    assert {each.status for each in found.changes} == {"same"}
    assert "every line holds the same" in repr(found)


def test_compare_settings_gives_the_difference_of_real_pytorch_runs() -> None:
    """`gpt2-ragged-what-if.json` has the peaks of the same requests under real PyTorch."""
    result = json.loads((TRACES / "gpt2-ragged-what-if.json").read_text())
    recording = load(TRACES / "gpt2-ragged-torch2.15.pickle.gz")
    conf, whole = "expandable_segments:True", 25_165_824_000
    under = {each["conf"]: each for each in result["runs"] if each["device_memory"] == whole}
    found = compare_settings(recording, (None, conf))
    adds_up(found)
    for side, name in ((found.a, ""), (found.b, conf)):
        assert side.reserved.reserved == under[name]["peak_reserved_bytes"]
        assert side.allocated_bytes == under[name]["peak_allocated_bytes"]
        assert side.driver_calls == under[name]["num_device_alloc"]
    assert found.parts.requested == 0, "both were asked for the same"


def snapshot_of(rows: Sequence[tuple[str, int, str, int]]) -> Recording:
    """Return a recording of requests (file, line, function, size) that live to its end."""
    gpu = CachingAllocator("64GiB", record_history=True)
    for *_, size in rows:
        gpu.malloc(size)
    snapshot = gpu.snapshot()
    asked = [row for row in snapshot["device_traces"][0] if row["action"] == "alloc"]
    for entry, (file, line, name, _) in zip(asked, rows, strict=True):
        entry["frames"] = [{"filename": f"/home/me/{file}", "line": line, "name": name}]
    return load_of(snapshot)


def load_of(snapshot: dict[str, Any]) -> Recording:
    with NamedTemporaryFile(suffix=".pickle") as file:
        file.write(pickle.dumps(snapshot, protocol=4))
        file.flush()
        return load(file.name)


def test_lines_that_moved_are_the_same_lines() -> None:
    a = snapshot_of([("a.py", 3, "f", 4 * MIB), ("a.py", 9, "f", 6 * MIB), ("b.py", 1, "g", MIB)])
    b = snapshot_of([("a.py", 5, "f", 4 * MIB), ("a.py", 11, "f", 8 * MIB), ("b.py", 1, "g", MIB)])
    found = compare(a, b)
    result = {(each.was, each.owner): each.bytes for each in found.changes}
    assert result == {
        ("a.py:9 f", "a.py:11 f"): 2 * MIB,
        ("a.py:3 f", "a.py:5 f"): 0,
        ("b.py:1 g", "b.py:1 g"): 0,
    }


def test_added_lines_are_not_paired_with_moved_ones() -> None:
    a = snapshot_of([("a.py", 3, "f", 4 * MIB)])
    b = snapshot_of([("a.py", 5, "f", 4 * MIB), ("a.py", 6, "f", 2 * MIB)])
    statuses = {each.owner: each.status for each in compare(a, b).changes}
    assert statuses == {"a.py:3 f": "gone", "a.py:5 f": "new", "a.py:6 f": "new"}


def test_additional_request_does_not_count_as_resized() -> None:
    """If four requests become five, the one without a match is new, at any position."""
    a = snapshot_of([("a.py", 1, "f", size * MIB) for size in (1, 2, 3, 4)])
    b = snapshot_of([("a.py", 1, "f", size * MIB) for size in (7, 1, 2, 3, 4)])
    (change,) = compare(a, b).changes
    assert (change.resized, change.more) == (0, 7 * MIB)


@settings(max_examples=12)
@given(
    *[
        st.lists(
            st.tuples(
                st.sampled_from(("a.py", "b.py")),
                st.integers(1, 3),
                st.sampled_from("fg"),
                st.integers(1, 40).map(lambda size: size * MIB // 3),
            ),
            min_size=1,
            max_size=8,
        )
        for _ in "ab"
    ]
)
def test_changes_of_any_grouping_add_up_to_the_difference(
    a: list[tuple[str, int, str, int]], b: list[tuple[str, int, str, int]]
) -> None:
    first, second = snapshot_of(a), snapshot_of(b)
    for by in ("line", "category"):
        found = compare(first, second, by=by)
        adds_up(found)
        assert found.a.allocated_bytes - found.a.reserved.rounding == sum(row[3] for row in a)


def test_compare_uses_the_state_of_a_recording_without_entries() -> None:
    def state(sizes: Sequence[int]) -> Recording:
        gpu = CachingAllocator("64GiB")
        for size in sizes:
            gpu.malloc(size * MIB)
        gpu.free(gpu.malloc(30 * MIB))
        return load_of(gpu.snapshot() | {"device_traces": [[]]})

    found = compare(state([4]), state([4, 40]))
    adds_up(found)
    assert found.allocated_change == 40 * MIB
    assert found.a.retries is None
    assert "holds only a state" in found.a.notes[0]
    with pytest.raises(RecordingError, match="there is no 'peak', only the end"):
        compare(state([4]), state([4]), at="peak")
    with pytest.raises(RecordingError, match="cannot be replayed under other settings"):
        compare_settings(state([4]), (None, "expandable_segments:True"))


def test_compare_refuses_a_wrong_grouping_moment_or_setting() -> None:
    a = recorded("sized/layers2")
    with pytest.raises(ValueError, match="by='file' is not one of line, stack"):
        compare(a, a, by="file")
    with pytest.raises(RecordingError, match="no out-of-memory error is recorded"):
        compare(a, a, at="oom")
    with pytest.raises(ConfigError, match="max_split"):
        compare_settings(a, (None, "max_split_size_mb:1"))
