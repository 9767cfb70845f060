"""The memory fraction and throw_on_cudamalloc_oom (semantics 1.11, 1.12)."""

from __future__ import annotations

import pytest

from allocsim import OutOfMemoryError
from allocsim.core import RELEASES
from allocsim.errors import ConfigError
from allocsim.units import MIB

from .conftest import Make, held

ORDER = list(RELEASES)
FRACTIONS = [torch for torch in ORDER if ORDER.index(torch) >= ORDER.index("2.10")]
THROWERS = [torch for torch in ORDER if ORDER.index(torch) >= ORDER.index("2.12")]


@pytest.mark.parametrize("torch", RELEASES)
def test_the_limit_is_truncated_then_rounded(make: Make, torch: str) -> None:
    """0.15 of 50 MiB + 9 bytes is 7,864,321.35, of + 10 bytes 7,864,321.5: a half rounds up."""
    rounds = ORDER.index(torch) >= ORDER.index("2.13")
    for total, cut, rounded in (
        (50 * MIB + 9, 7_864_321, 7_864_321),
        (50 * MIB + 10, 7_864_321, 7_864_322),
    ):
        a = make(total, torch_version=torch)
        a.set_per_process_memory_fraction(0.15)
        assert a.heap.limit == (rounded if rounds else cut)


@pytest.mark.parametrize("torch", RELEASES)
def test_a_full_fraction_is_a_limit_up_to_2_9_and_none_later(make: Make, torch: str) -> None:
    a = make(torch_version=torch)
    a.set_per_process_memory_fraction(0.5)
    a.set_per_process_memory_fraction(1.0)
    assert a.heap.limit == (None if torch in FRACTIONS else 1 << 30)


@pytest.mark.parametrize("fraction", [-0.1, 1.0000001, float("nan"), float("inf")])
def test_a_fraction_beyond_0_to_1_is_refused(make: Make, fraction: float) -> None:
    a = make()
    a.set_per_process_memory_fraction(0.5)
    with pytest.raises(ValueError, match=r"memory fraction .* is out of range; expected 0 to 1"):
        a.set_per_process_memory_fraction(fraction)
    assert a.heap.limit == 1 << 29


@pytest.mark.parametrize(("fraction", "is_within"), [(0.5, True), (0.4999999, False), (0.0, False)])
def test_a_segment_may_reach_the_limit_but_not_pass_it(
    make: Make, fraction: float, is_within: bool
) -> None:
    a = make("40MiB")
    a.set_per_process_memory_fraction(fraction)
    if is_within:
        a.malloc(20 * MIB)
        return
    with pytest.raises(OutOfMemoryError):
        a.malloc(20 * MIB)
    assert a.reserved_bytes == 0


def test_the_limit_counts_whole_segments_even_for_expandable_ones(make: Make) -> None:
    """Only 5 MiB more would be mapped, but the segment size of the request counts."""
    a = make("100MiB", conf="expandable_segments:True")
    a.set_per_process_memory_fraction(0.39)
    a.malloc(5 * MIB)
    a.malloc(5 * MIB)
    a.malloc(8 * MIB)
    with pytest.raises(OutOfMemoryError, match=r"Tried to allocate 20\.00 MiB"):
        a.malloc(5 * MIB)


@pytest.mark.parametrize("torch", FRACTIONS)
def test_the_option_is_applied_once_at_creation(make: Make, torch: str) -> None:
    a = make("100MiB", torch_version=torch, conf="per_process_memory_fraction:0.25")
    assert a.heap.limit == 25 * MIB
    a.set_allocator_settings("per_process_memory_fraction:0.75")
    assert a.heap.limit == 25 * MIB
    a.set_per_process_memory_fraction(0.5)
    assert a.heap.limit == 50 * MIB


@pytest.mark.parametrize("torch", ["2.1", "2.9"])
def test_before_2_10_the_option_is_unknown(make: Make, torch: str) -> None:
    with pytest.raises(ConfigError, match="unrecognized option 'per_process_memory_fraction'"):
        make(torch_version=torch, conf="per_process_memory_fraction:0.25")


@pytest.mark.parametrize("torch", THROWERS)
def test_the_throw_policy_skips_the_retries(make: Make, torch: str) -> None:
    a = make("64MiB", torch_version=torch, conf="throw_on_cudamalloc_oom:True")
    a.free(a.malloc(30 * MIB))
    a.take_history()
    before = a.memory_snapshot()
    with pytest.raises(OutOfMemoryError) as caught:
        a.malloc(40 * MIB)
    assert str(caught.value) == (
        "CUDA out of memory. Allocation was preemptively rejected because it would exceed "
        "per_process_memory_fraction limit. Requested size: 40.00 MiB"
    )
    assert (caught.value.requested_bytes, caught.value.tried_bytes) == (40 * MIB, 40 * MIB)
    stats = a.memory_stats()
    assert stats["num_oom_rejections"] == 1
    assert stats["num_ooms"] == stats["num_alloc_retries"] == 0
    assert a.take_history() == []
    assert a.memory_snapshot() == before


@pytest.mark.parametrize(
    ("size", "text"), [(513, "513 bytes"), (56_214_159, "53.61 MiB"), (2048, "2.00 KiB")]
)
def test_a_rejection_names_the_raw_request(make: Make, size: int, text: str) -> None:
    """12.4: through the size formatter, not rounded."""
    a = make(MIB, conf="throw_on_cudamalloc_oom:True")
    with pytest.raises(OutOfMemoryError, match=f"Requested size: {text}$"):
        a.malloc(size)


def test_an_equal_limit_is_tested_first(make: Make) -> None:
    conf = "throw_on_cudamalloc_oom:True,per_process_memory_fraction:0.3"
    a = make("100MiB", conf=conf)
    with pytest.raises(OutOfMemoryError, match=r"30\.00 MiB allowed"):
        a.malloc(40 * MIB)
    assert a.memory_stats()["num_oom_rejections"] == 0
    assert a.config.inert_options(has_limit=True) == (
        "throw_on_cudamalloc_oom has no effect with per_process_memory_fraction: the ordinary "
        "limit of the same size is tested first",
    )


@pytest.mark.parametrize("size", [1 << 60, 1 << 70])
def test_an_exbibyte_is_refused_before_anything_is_looked_at(make: Make, size: int) -> None:
    a = make()
    before = a.memory_stats()
    with pytest.raises(OutOfMemoryError) as caught:
        a.malloc(size)
    assert str(caught.value) == ("CUDA out of memory. Tried to allocate more than 1EB memory.")
    assert (a.memory_stats(), a.take_history()) == (before, [])
    with pytest.raises(OutOfMemoryError, match=r"Tried to allocate 1073741824\.00 GiB"):
        a.malloc((1 << 60) - 1)
    assert a.memory_stats()["num_ooms"] == 1


@pytest.mark.parametrize(("torch", "rejections"), [("2.12", 1), ("2.13", 2), ("2.15", 2)])
def test_each_refusal_of_the_throw_policy_counts(make: Make, torch: str, rejections: int) -> None:
    """Observed: the limit refuses first; after a release the policy does, at each attempt left.

    Inside a scope 2.12 has one attempt left, later releases have two.
    """
    a = make("512MiB", conf="max_split_size_mb:25", torch_version=torch)
    a.set_per_process_memory_fraction(0.9)
    a.begin_allocate_to_pool(3)
    a.free(held(a, 192 * MIB, 7))
    held(a, 192 * MIB)
    a.set_allocator_settings(
        "max_split_size_mb:25,per_process_memory_fraction:0.5,throw_on_cudamalloc_oom:True"
    )
    with pytest.raises(OutOfMemoryError, match="preemptively rejected"):
        a.malloc(165 * MIB, 7)
    assert a.memory_stats()["num_oom_rejections"] == rejections
    assert a.memory_stats()["num_ooms"] == 0


def test_the_error_of_an_exbibyte_carries_the_request_and_no_segment(make: Make) -> None:
    with pytest.raises(OutOfMemoryError) as caught:
        make().malloc((1 << 60) + 1)
    error = caught.value
    assert (error.requested_bytes, error.rounded_bytes) == ((1 << 60) + 1,) * 2
    assert error.tried_bytes == 0  # no attempt was made, and the text contains none


@pytest.mark.parametrize("torch", THROWERS)
def test_the_throw_policy_lets_the_last_byte_be_taken(make: Make, torch: str) -> None:
    """Observed on 2.12.0 and 2.15.0."""
    a = make("40MiB", torch_version=torch, conf="throw_on_cudamalloc_oom:True")
    assert a.malloc(40 * MIB) == 0
    assert a.memory_stats()["num_oom_rejections"] == 0
