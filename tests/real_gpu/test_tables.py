"""Comparisons with a GPU on inputs small enough to verify."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from allocsim.recording import Action, Recording, read_snapshot
from benchmarks.real_gpu.cases import case_lines
from benchmarks.real_gpu.comparison import comparison_lines, sections
from benchmarks.real_gpu.kernels import families
from benchmarks.real_gpu.predictions import predictions_of, same_entries
from benchmarks.real_gpu.programs import WhatIf
from benchmarks.real_gpu.tables import error_text
from tests.recording.history import History

MIB = 1 << 20


def test_error_is_positive_if_too_much_is_predicted() -> None:
    assert error_text(1000, 1010) == "+1.000 %"
    assert error_text(1000, 990) == "-1.000 %"
    assert error_text(1000, 1000) == "exact"
    assert error_text(1000, None) == "-"


def test_what_if_names_driver_addresses_only_if_the_policies_differ() -> None:
    assert WhatIf("p", "s", real=10, predicted=10, low=9, high=11).cause == ""
    inside = WhatIf("p", "s", real=10, predicted=11, low=9, high=11).cause
    assert "9 to 11; the card is in this range" in inside
    assert "is outside" in WhatIf("p", "s", real=12, predicted=11, low=9, high=11).cause
    assert "not found" in WhatIf("p", "s", real=12, predicted=11, low=11, high=11).cause
    assert WhatIf("p", "s", real=12, predicted=None, error="refused").cause == "refused"


def recorded(sizes: Sequence[int], *, frees: bool = False) -> Recording:
    """Return a recording of requests of MiB; `frees` frees all of them at the end."""
    history = History()
    made = [history.alloc(size * MIB) for size in sizes]
    for address in made if frees else []:
        history.free(address)
    return read_snapshot("made", history.snapshot(), 1 << 20)


def test_entries_are_the_same_up_to_the_first_other_request() -> None:
    card = recorded([3, 4, 5])
    n = len(card.devices[0])
    assert same_entries(card, card)[:2] == (n, n)
    other = recorded([3, 4, 6])
    same, total, place = same_entries(card, other, (Action.ALLOC,))
    assert (same, total) == (2, 3)
    assert place
    shorter = recorded([3, 4])
    assert same_entries(card, shorter, (Action.ALLOC,)) == (2, 3, "the phantom's program ends")


def test_frees_after_the_last_request_are_not_compared() -> None:
    card = recorded([3, 4], frees=True)
    kept = recorded([3, 4])
    same, total, place = same_entries(card, kept)
    assert same == total
    assert place == ""


ATTENTION = {
    **{"dtype": "bfloat16", "b": 1, "h": 2, "s": 3, "t": 3, "d": 4, "causal": False},
    **{"mask": False, "train": True, "forward": [10, 5, -5], "backward": [20]},
}


def test_kernel_is_exact_if_all_requests_are_in_the_same_order() -> None:
    real = {"attention": [ATTENTION, ATTENTION, ATTENTION], "conv": []}
    predicted: dict[str, list[Any]] = {
        "attention": [
            [[10, 5, -5], [20], None],
            [[5, 10, -5], [22], None],
            [None, None, "refused"],
        ]
    }
    forward, backward = sorted(families(real, predicted), key=lambda each: "backward" in each.name)
    assert (forward.calls, forward.exact, forward.failed) == (3, 1, 1)
    assert forward.errors == [0.0, 0.0]
    assert (backward.calls, backward.exact, backward.failed) == (3, 1, 1)
    assert backward.errors == pytest.approx([0.0, 10.0])
    assert "[20] on the card, [22] predicted" in backward.example


def with_frees(order: Sequence[int]) -> Recording:
    """Return a recording of three requests, three frees in an order, and another request."""
    history = History()
    made = [history.alloc(size * MIB) for size in (3, 4, 5)]
    for index in order:
        history.free(made[index])
    history.alloc(2 * MIB)
    return read_snapshot("made", history.snapshot(), 1 << 20)


def test_order_of_frees_between_two_requests_is_ignored_only_on_demand() -> None:
    card, other = with_frees([0, 1, 2]), with_frees([2, 0, 1])
    same, total, _ = same_entries(card, other)
    assert same < total
    assert same_entries(card, other, frees_in_order=False) == (total, total, "")


def test_frees_on_the_other_side_of_a_request_are_a_difference() -> None:
    same, total, place = same_entries(
        with_frees([0, 1, 2]), with_frees([0, 1]), frees_in_order=False
    )
    assert same < total
    assert place


AUTOCAST = {
    **{"same_entries": 3, "entries": 7, "same_requests": 2, "requests": 5},
    **{"first_request": "linear.py:134 forward", "first_request_frees_unordered": ""},
    **{"same_entries_frees_unordered": 7, "same_requests_frees_unordered": 5},
    **{"differences": {"missing": 0, "added": 0, "moved": 2}},
    **{"peak_reserved": 1000, "peak_allocated": 900},
}


def test_case_table_distinguishes_chance_and_addresses_from_other_causes() -> None:
    row = {"kind": "train", "model": "m", "optimizer": "sgd", "batch": 1, "seq": 2}
    row |= {"dtype": "autocast_bf16", "peak_reserved": 1000, "peak_allocated": 900}
    other = {"first_request": "", "same_requests": 5, "same_entries_frees_unordered": 3}
    text = "\n".join(case_lines({"a": row, "b": row}, {"a": AUTOCAST, "b": AUTOCAST | other}))
    assert "entries are all the card's: 0; 1 more differ in the order of frees alone." in text
    assert "leaves to chance (linear.py:134 forward) | 0, 0, 2 |" in text
    assert "no other request; addresses of the driver" in text


def test_case_table_counts_exact_peaks_and_names_the_worst() -> None:
    row = {"kind": "train", "model": "m", "dtype": "bf16", "optimizer": "sgd", "batch": 1, "seq": 2}
    real = {name: row | {"peak_reserved": 1000, "peak_allocated": 900} for name in "ab"}
    real["b"]["model"] = "other"
    predicted: dict[str, dict[str, Any]] = {
        "a": {"peak_reserved": 1000, "peak_allocated": 900},
        "b": {
            **{"peak_reserved": 950, "peak_allocated": 909, "same_entries": 3, "entries": 7},
            **{"same_requests": 2, "requests": 5, "first_request": "conv.py:548 _conv_forward"},
        },
    }
    real["c"] = {**real["a"], "oom": True, "peak_reserved": 5}
    predicted["c"] = predicted["a"]
    text = "\n".join(case_lines(real, predicted))
    assert "1 of 2 peaks of reserved memory are exact, 1 within 1 %; " in text
    assert "; the worst is other bf16 sgd 1 x 2, -5.000 %" in text
    assert "| -5.000 % | +1.000 % | 3 of 7 | 2 of 5 |" in text
    assert "workspace of a convolution (conv.py:548 _conv_forward)" in text


def test_folder_without_anything_says_so(tmp_path: Path) -> None:
    assert sections(tmp_path, {}) == {}
    assert comparison_lines(tmp_path, {}) == [f"{tmp_path} holds nothing to compare"]
    assert predictions_of(tmp_path, tmp_path)["cases"] == {}
