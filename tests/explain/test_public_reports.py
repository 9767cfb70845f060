"""Texts of public bug reports whose cause is easily mistaken, and what is said of them.

The sizes are changed; the wording and the relations of the sizes are those of the reports.
"""

from __future__ import annotations

import pytest

from allocsim import explain
from allocsim.analysis.explain import Verdict
from allocsim.units import GIB


def one(text: str, conf: str | None = None) -> Verdict:
    (verdict,) = explain(text, conf)
    return verdict


def advice(text: str, conf: str | None = None) -> str:
    return " ".join(one(text, conf).advice)


def old(tried: str, total: str, allocated: str, free: str, reserved: str) -> str:
    """Return an error in the words of PyTorch 1.4 to 2.0."""
    return (
        f"CUDA out of memory. Tried to allocate {tried} (GPU 0; {total} total capacity; {allocated}"
        f" already allocated; {free} free; {reserved} reserved in total by PyTorch)"
    )


def modern(
    tried: str, total: str, free: str, allocated: str, idle: str, *, backend: str = "CUDA",
    more: str = "",
) -> str:  # fmt: skip
    """Return an error in the words of PyTorch 2.2 and later; `more` follows free memory."""
    return (
        f"torch.OutOfMemoryError: {backend} out of memory. Tried to allocate {tried}. GPU 0 has a "
        f"total capacity of {total} of which {free} is free. {more}Of the allocated memory "
        f"{allocated} is allocated by PyTorch, and {idle} is reserved by PyTorch but unallocated."
    )


NEIGHBOUR = (
    "Process 4010 has {} memory in use. Including non-PyTorch memory, this process has {} memory "
    "in use. "
)


def test_card_with_hardly_any_idle_memory_is_full_not_fragmented() -> None:
    verdict = one(old("20.00 MiB", "10.76 GiB", "9.71 GiB", "5.69 MiB", "9.74 GiB"))
    assert verdict.cause == "full"
    assert verdict.arithmetic.endswith("; only 0.3% of 9.74 GiB is idle")
    assert "at most 30.72 MiB are fragmented" in verdict.advice[0]


def test_fragmentation_with_little_idle_memory_says_how_little_a_setting_gains() -> None:
    text = modern("22.00 MiB", "23.65 GiB", "11.06 MiB", "22.90 GiB", "194.87 MiB")
    verdict = one(text)
    assert verdict.cause == "fragmentation"
    assert verdict.advice[0].startswith("Only 0.8% of PyTorch's memory is idle")
    much = modern("600.00 MiB", "8.00 GiB", "200.00 MiB", "6.00 GiB", "900.00 MiB")
    assert "of PyTorch's memory is idle" not in advice(much)


def test_verdict_and_advice_name_another_process_that_decides() -> None:
    more = NEIGHBOUR.format("41.00 GiB", "38.00 GiB")
    text = modern("256.00 MiB", "79.15 GiB", "100.00 MiB", "37.00 GiB", "512.00 MiB", more=more)
    verdict = one(text)
    assert verdict.outside == "process 4010 held 41.00 GiB of the card"
    assert verdict.figures.others_bytes == 41 * GIB
    assert verdict.advice[0].startswith("Other processes hold memory on this card: process 4010")


def test_small_process_beside_a_full_one_is_not_in_the_verdict() -> None:
    more = NEIGHBOUR.format("1.00 GiB", "78.00 GiB")
    text = modern("256.00 MiB", "79.15 GiB", "100.00 MiB", "77.00 GiB", "50.00 MiB", more=more)
    assert not one(text).outside
    # In a container the only listed process is this one, under another number.
    own = "Process 20398 has 14.52 GiB memory in use. "
    inside = modern("496.00 MiB", "14.75 GiB", "235.06 MiB", "14.06 GiB", "330.42 MiB", more=own)
    assert not one(inside).outside
    assert one(inside).figures.others_bytes is None


def test_more_reserved_than_the_card_has_is_host_memory() -> None:
    verdict = one(old("11.50 GiB", "12.00 GiB", "11.80 GiB", "0 bytes", "23.40 GiB"))
    assert verdict.cause == "host_fallback"
    assert verdict.arithmetic == "23.40 GiB reserved > 12.00 GiB on the card"
    assert "must allocate 11.30 GiB less" in " ".join(verdict.advice)
    assert "expandable" not in " ".join(verdict.advice)


@pytest.mark.parametrize(
    ("tried", "allocated"), [("20.00 GiB", "2.00 GiB"), ("10.00 GiB", "15.00 GiB")]
)
def test_total_below_free_memory_is_not_the_capacity(tried: str, allocated: str) -> None:
    verdict = one(modern(tried, "16.00 GiB", "80.00 GiB", allocated, "0 bytes", backend="HIP"))
    assert verdict.cause == "free_above_request"
    assert verdict.advice[0].startswith("The sizes contradict each other: 80.00 GiB are free of")
    said = " ".join(verdict.advice)
    assert "whole card" not in said
    assert "set_per_process_memory_fraction" not in said


def test_limit_of_one_allocation_that_the_text_states_is_the_cause() -> None:
    verdict = one(
        "RuntimeError: Current platform can NOT allocate memory block with size larger than 4GB! "
        "Tried to allocate 6.85 GiB (GPU  0; 15.56 GiB total capacity; 0 bytes already allocated; "
        "0 bytes reserved in total by PyTorch)"
    )
    assert verdict.cause == "impossible"
    assert verdict.arithmetic == "6.85 GiB tried > 4.00 GiB, the most that one allocation may have"
    assert "UR_L0_ENABLE_RELAXED_ALLOCATION_LIMITS=1" in verdict.advice[0]


def test_intel_card_that_refuses_4_gib_has_the_limit_named_before_others() -> None:
    text = modern("4.00 GiB", "15.11 GiB", "15.11 GiB", "1024 bytes", "2.00 MiB", backend="XPU")
    assert "single allocations above 4.00 GiB" in one(text).advice[1]
    assert "torch.cuda" not in one(text).advice[1]
    assert "of the card, and this request" not in advice(text)
    small = text.replace("4.00 GiB.", "1.00 GiB.")
    assert "single allocations" not in advice(small)


@pytest.mark.parametrize(
    "text",
    [
        'RuntimeError: NVML_SUCCESS == r INTERNAL ASSERT FAILED at "../c10/cuda/'
        'CUDACachingAllocator.cpp":830, please report a bug to PyTorch.',
        "NVML_SUCCESS == r INTERNAL ASSERT FAILED at /build/CUDACachingAllocator.cpp:1016",
    ],
)
def test_assertion_of_nvml_is_an_out_of_memory_error_in_disguise(text: str) -> None:
    assert "This is an out-of-memory error" in one(text).advice[0]
    assert "MIG" in one(text).advice[0]


def test_bare_text_of_cuda_malloc_async_is_not_said_to_be_old() -> None:
    said = advice("torch.OutOfMemoryError: Allocation on device ")
    assert "cudaMallocAsync" in said
    assert "1.0" not in said


def test_rocm_has_its_own_limits_of_expandable_segments() -> None:
    text = modern("6.64 GiB", "19.92 GiB", "6.22 GiB", "5.34 GiB", "7.10 GiB", backend="HIP")
    assert "below ROCm 7" in advice(text)
    assert "Jetson" not in advice(text)


def test_idle_memory_under_expandable_segments_may_be_in_shared_pages() -> None:
    text = modern("100.00 MiB", "2.00 GiB", "8.00 MiB", "1012.00 MiB", "900.00 MiB")
    assert "pages of 20 MiB that other blocks use" in advice(text, "expandable_segments:True")


def test_limit_within_the_rounding_of_the_text_is_advice_not_the_cause() -> None:
    """1,072 MiB are held, 2 requested, and "1.05 GiB" allowed, which may be 1,070 MiB."""
    text = modern(
        "2.00 MiB", "255.98 GiB", "244.65 GiB", "1017.01 MiB", "54.99 MiB", backend="HIP",
        more="1.05 GiB allowed; ",
    )  # fmt: skip
    assert one(text).cause == "free_above_request"
    assert "1.05 GiB are held of 1.05 GiB allowed" in one(text).advice[1]


def test_limit_of_apple_is_a_full_machine_not_a_fraction() -> None:
    verdict = one(
        "MPS backend out of memory (MPS allocated: 17.26 GB, other allocations: 768.00 KB, max "
        "allowed: 18.13 GB). Tried to allocate 1.00 GB on private pool."
    )
    assert verdict.cause == "full"
    assert "PYTORCH_MPS_HIGH_WATERMARK_RATIO" in " ".join(verdict.advice)
