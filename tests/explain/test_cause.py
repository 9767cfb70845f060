"""Cause by the figures alone: order of the comparisons, and effects of rounding."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocsim.analysis.explain.cause import MESSAGE_CAUSES, Figures, cause_of, rounding_of
from allocsim.units import GIB, KIB, MIB

FULL = Figures(
    tried_bytes=900 * MIB,
    total_bytes=6 * GIB,
    allocated_bytes=5 * GIB,
    idle_bytes=400 * MIB,
    free_bytes=300 * MIB,
)
"""A request of 900 MiB with only 400 MiB idle and 300 MiB free."""


def test_causes_are_named_and_ordered_as_documented() -> None:
    assert MESSAGE_CAUSES == (
        "impossible",
        "host_fallback",
        "fraction_limit",
        "free_above_request",
        "fragmentation",
        "fragmentation_likely",
        "full",
        "host_memory",
        "no_figures",
    )


def test_cause_of_returns_each_cause_for_its_sizes() -> None:
    """Go from the last cause to the first; each further figure has precedence over later causes."""
    assert cause_of(FULL) == "full"
    likely = replace(FULL, tried_bytes=700 * MIB)
    assert cause_of(likely) == "fragmentation_likely"
    fragmented = replace(likely, tried_bytes=400 * MIB)
    assert cause_of(fragmented) == "fragmentation"
    free = replace(fragmented, tried_bytes=300 * MIB)
    assert cause_of(free) == "free_above_request"
    limited = replace(free, limit_bytes=5 * GIB + 500 * MIB)
    assert cause_of(limited) == "fraction_limit"
    spilled = replace(limited, allocated_bytes=7 * GIB)
    assert cause_of(spilled) == "host_fallback"
    assert cause_of(replace(spilled, tried_bytes=8 * GIB)) == "impossible"


def test_reserved_and_idle_memory_are_derived_from_each_other() -> None:
    told_whole = replace(FULL, idle_bytes=None, reserved_bytes=5 * GIB + 400 * MIB)
    assert told_whole.idle == FULL.idle == 400 * MIB
    assert told_whole.reserved == FULL.reserved == 5 * GIB + 400 * MIB
    assert cause_of(replace(told_whole, tried_bytes=400 * MIB)) == "fragmentation"


def test_unknown_figures_leave_their_comparison_out() -> None:
    assert cause_of(Figures()) == "no_figures"
    assert cause_of(Figures(tried_bytes=MIB)) == "no_figures"
    assert cause_of(replace(FULL, tried_bytes=None)) == "no_figures"
    assert cause_of(Figures(tried_bytes=MIB, total_bytes=GIB)) == "no_figures"
    # A log line has no idle memory, an early XPU text no free memory.
    assert cause_of(Figures(tried_bytes=20 * MIB, free_bytes=15 * MIB)) == "full"
    live = Figures(tried_bytes=2 * GIB, total_bytes=8 * GIB, allocated_bytes=7 * GIB)
    assert cause_of(live) == "full"
    assert cause_of(replace(live, allocated_bytes=5 * GIB)) == "no_figures"


def test_a_limit_as_large_as_the_card_limits_nothing() -> None:
    whole = replace(FULL, limit_bytes=6 * GIB)
    assert cause_of(whole) == "full"


def test_distant_limit_is_not_the_cause() -> None:
    assert cause_of(replace(FULL, tried_bytes=MIB, limit_bytes=6 * GIB - 1)) == "free_above_request"


def test_limit_decides_only_if_the_printed_sizes_exceed_it() -> None:
    """1,072 MiB are reserved, 2 requested, and "1.05 GiB" allowed, which may be 1,070 MiB."""
    forgotten = Figures(
        tried_bytes=2 * MIB,
        total_bytes=256 * GIB,
        allocated_bytes=1017 * MIB,
        idle_bytes=55 * MIB,
        free_bytes=244 * GIB,
        limit_bytes=int(1.05 * GIB),
        printed=True,
    )
    assert cause_of(forgotten) == "free_above_request"
    assert cause_of(replace(forgotten, tried_bytes=4 * MIB)) == "fraction_limit"
    assert cause_of(replace(forgotten, free_bytes=0)) == "fragmentation"


def test_free_memory_must_exceed_the_request_by_the_rounding_error() -> None:
    """The driver refused 1,020 MiB, so "1.00 GiB" free must be less."""
    close = replace(FULL, tried_bytes=1020 * MIB, free_bytes=GIB + 1, printed=True)
    assert cause_of(close) == "fragmentation_likely"
    assert cause_of(replace(close, printed=False)) == "free_above_request"


def test_rounding_is_half_of_the_last_digit() -> None:
    assert rounding_of(1024) == 0
    assert rounding_of(512 * KIB) == pytest.approx(5.12)
    assert rounding_of(512 * MIB) == pytest.approx(5242.88)
    assert rounding_of(24 * GIB) == pytest.approx(5368709.12)


sizes = st.none() | st.integers(0, 1 << 64)
figures = st.builds(
    Figures,
    tried_bytes=sizes,
    total_bytes=sizes,
    allocated_bytes=sizes,
    reserved_bytes=sizes,
    idle_bytes=sizes,
    free_bytes=sizes,
    limit_bytes=sizes,
    process_bytes=sizes,
    printed=st.booleans(),
)


@given(figures)
def test_cause_of_returns_a_cause_for_any_sizes(found: Figures) -> None:
    assert cause_of(found) in MESSAGE_CAUSES
