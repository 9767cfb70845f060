"""The whole text of an out-of-memory error, release by release (semantics 7.1, 7.2, 12.5)."""

from __future__ import annotations

import pytest

from allocsim import OutOfMemoryError
from allocsim.core import RELEASES, find_release, parse_conf
from allocsim.core.cache_miss import OomFigures, oom_text
from allocsim.units import GIB, MIB, format_size

from .conftest import Make

OLD_ADVICE = (
    " If reserved but unallocated memory is large try setting max_split_size_mb to avoid "
    "fragmentation.  See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF"
)
ADVICE = (
    " If reserved but unallocated memory is large try setting "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation "
    "for Memory Management  "
    "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
)
ADVICE_210 = ADVICE.replace("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
NEW_ADVICE = (
    " If reserved but unallocated memory is large try setting "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation "
    "for Memory Management  (https://docs.pytorch.org/docs/stable/notes/cuda.html"
    "#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"
)
SINCE = {"2.1": OLD_ADVICE, "2.2": ADVICE, "2.10": ADVICE_210, "2.11": NEW_ADVICE}
EXPANDABLE_SINCE = {
    "2.14": "",
    "2.15": (
        " expandable_segments is enabled. If instead the process is running out of virtual "
        "address space (VSZ), expandable segments may be over-reserving VA (each segment "
        "reserves ~9/8 of device memory, times the number of streams); reduce it via "
        "PYTORCH_CUDA_ALLOC_CONF expandable_segments_reserve / "
        "expandable_segments_reserve_by_class."
    ),
}


def in_force(since: dict[str, str], torch: str) -> str:
    """Return the text of the last release up to `torch` that changed it."""
    order = list(RELEASES)
    return [since[each] for each in order[: order.index(torch) + 1] if each in since][-1]


ADVICES = {torch: in_force(SINCE, torch) for torch in RELEASES}
OTHERS = [torch for torch in RELEASES if torch != "2.3"]
COUNTED = [torch for torch in OTHERS if torch not in ("2.1", "2.2")]
SINCE_25 = [torch for torch in COUNTED if torch != "2.4"]
CAPACITY = {torch: "capacty" if torch == "2.1" else "capacity" for torch in OTHERS}


def full(make: Make, torch: str, **arguments: object) -> str:
    """Return the error of 17 MiB and a byte on a device of 30 MiB with a segment of 20 MiB."""
    a = make("30MiB", torch_version=torch, **arguments)
    a.malloc(3 * MIB)
    with pytest.raises(OutOfMemoryError) as caught:
        a.malloc(17 * MIB + 1)
    return str(caught.value)


@pytest.mark.parametrize("torch", OTHERS)
def test_the_plain_text(make: Make, torch: str) -> None:
    assert full(make, torch) == (
        "CUDA out of memory. Tried to allocate 18.00 MiB. GPU 0 has a total "
        f"{CAPACITY[torch]} of 30.00 MiB of which 10.00 MiB is free. Of the allocated memory "
        "3.00 MiB is allocated by PyTorch, and 17.00 MiB is reserved by PyTorch but unallocated."
        f"{ADVICES[torch]}"
    )


@pytest.mark.parametrize(
    ("device", "text"),
    [
        (0, "CUDA out of memory. Tried to allocate 18.00 MiB. GPU "),
        (
            7,
            "CUDA out of memory. Tried to allocate 18.00 MiB. GPU \x07 has a total capacity of "
            "30.00 MiB of which 10.00 MiB is free. Of the allocated memory 3.00 MiB is allocated "
            f"by PyTorch, and 17.00 MiB is reserved by PyTorch but unallocated.{ADVICE}",
        ),
    ],
)
def test_2_3_writes_the_device_as_a_byte(make: Make, device: int, text: str) -> None:
    assert full(make, "2.3", device=device) == text


@pytest.mark.parametrize("torch", OTHERS)
def test_another_device_is_named(make: Make, torch: str) -> None:
    assert ". GPU 12 has a total " in full(make, torch, device=12)


def limited(make: Make, torch: str) -> str:
    a = make("100MiB", torch_version=torch)
    a.set_per_process_memory_fraction(0.3)
    a.malloc(3 * MIB)
    with pytest.raises(OutOfMemoryError) as caught:
        a.malloc(17 * MIB + 1)
    return str(caught.value)


@pytest.mark.parametrize("torch", OTHERS)
def test_a_limit_is_told_since_2_5(make: Make, torch: str) -> None:
    allowed = "30.00 MiB allowed; " if torch in SINCE_25 else ""
    assert limited(make, torch) == (
        "CUDA out of memory. Tried to allocate 18.00 MiB. GPU 0 has a total "
        f"{CAPACITY[torch]} of 100.00 MiB of which 80.00 MiB is free. {allowed}Of the allocated "
        "memory 3.00 MiB is allocated by PyTorch, and 17.00 MiB is reserved by PyTorch but "
        f"unallocated.{ADVICES[torch]}"
    )


@pytest.mark.parametrize("torch", OTHERS)
def test_free_blocks_of_private_pools_are_told_since_2_4(make: Make, torch: str) -> None:
    a = make("50MiB", torch_version=torch)
    a.begin_allocate_to_pool(1)
    kept = a.malloc(4 * MIB)
    a.free(a.malloc(2 * MIB))
    a.end_allocate_to_pool(1)
    a.malloc(3 * MIB)
    with pytest.raises(OutOfMemoryError) as caught:
        a.malloc(17 * MIB + 1)
    part = (
        "23.00 MiB is allocated by PyTorch, with 16.00 MiB allocated in private pools (e.g., "
        "CUDA Graphs), and 17.00 MiB is reserved by PyTorch but unallocated."
    )
    if torch not in COUNTED:
        part = (
            "7.00 MiB is allocated by PyTorch, and 33.00 MiB is reserved by PyTorch but "
            "unallocated."
        )
    assert str(caught.value) == (
        "CUDA out of memory. Tried to allocate 18.00 MiB. GPU 0 has a total "
        f"{CAPACITY[torch]} of 50.00 MiB of which 10.00 MiB is free. Of the allocated memory "
        f"{part}{ADVICES[torch]}"
    )
    a.free(kept)


@pytest.mark.parametrize("torch", OTHERS)
def test_with_expandable_segments_on_the_advice_ends_in_2_14(make: Make, torch: str) -> None:
    advice = in_force(SINCE | EXPANDABLE_SINCE, torch)
    # 512 bytes are missing, but a handle is 20 MiB.
    assert full(make, torch, conf="expandable_segments:True") == (
        "CUDA out of memory. Tried to allocate 18.00 MiB. GPU 0 has a total "
        f"{CAPACITY[torch]} of 30.00 MiB of which 10.00 MiB is free. Of the allocated memory "
        "3.00 MiB is allocated by PyTorch, and 17.00 MiB is reserved by PyTorch but unallocated."
        f"{advice}"
    )


def test_the_hint_about_the_reserve(make: Make) -> None:
    """12.5: with the reserve before rounding, 0.05 of 3 GiB."""
    conf = "expandable_segments:True,expandable_segments_reserve:0.05"
    a = make("3GiB", conf=conf)
    with pytest.raises(OutOfMemoryError) as caught:
        a.malloc(200 * MIB)
    assert str(caught.value) == (
        "CUDA out of memory. Tried to allocate 200.00 MiB. GPU 0 has a total capacity of 3.00 GiB "
        "of which 3.00 GiB is free. Of the allocated memory 0 bytes is allocated by PyTorch, and "
        "0 bytes is reserved by PyTorch but unallocated. This allocation exceeds the "
        "expandable-segment reserve of 153.60 MiB for this stream, and a single allocation cannot "
        "span expandable segments. Raise PYTORCH_CUDA_ALLOC_CONF expandable_segments_reserve or "
        "expandable_segments_reserve_by_class (or unset it) so that a segment is at least "
        "200.00 MiB."
    )


@pytest.mark.parametrize("torch", OTHERS)
def test_free_memory_is_read_after_the_caches_were_dropped(make: Make, torch: str) -> None:
    a = make("64MiB", torch_version=torch)
    a.free(a.malloc(30 * MIB))
    with pytest.raises(OutOfMemoryError, match=r"64\.00 MiB is free\. .* 0 bytes is allocated"):
        a.malloc(65 * MIB)
    [oom] = [entry for entry in a.take_history() if entry.action == "oom"]
    assert (oom.address, oom.size) == (64 * MIB, 65 * MIB)


def test_the_error_carries_its_three_sizes(make: Make) -> None:
    a = make(MIB)
    with pytest.raises(OutOfMemoryError) as caught:
        a.malloc(1_500_000)
    error = caught.value
    assert (error.requested_bytes, error.rounded_bytes) == (1_500_000, 1_500_160)
    assert error.tried_bytes == 20 * MIB
    assert "Tried to allocate 20.00 MiB" in str(error)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (1024, "1024 bytes"),
        (1025, "1.00 KiB"),
        (MIB, "1024.00 KiB"),
        (MIB + 1, "1.00 MiB"),
        (1 << 30, "1024.00 MiB"),
        ((1 << 30) + 1, "1.00 GiB"),
        (1 << 40, "1024.00 GiB"),
        (-1, "17179869184.00 GiB"),
    ],
)
def test_sizes_are_printed_with_inclusive_limits(size: int, text: str) -> None:
    assert format_size(size) == text


@pytest.mark.parametrize(
    ("tried", "is_hinted"),
    [
        (GIB, False),
        (GIB + 2 * MIB, True),
        (2 * GIB, True),
        (2 * GIB + 2 * MIB, False),
    ],
)
def test_the_hint_is_for_sizes_above_the_reserve_and_up_to_the_device(
    tried: int, is_hinted: bool
) -> None:
    """12.5: when X < A <= total; here X is half of 2 GiB."""
    conf = "expandable_segments:True,expandable_segments_reserve:0.5"
    text = oom_text(
        OomFigures(
            device=0,
            tried=tried,
            total=2 * GIB,
            free=MIB,
            allocated=0,
            reserved=0,
            private=0,
            limit=None,
        ),
        parse_conf(conf, find_release("2.15")),
    )
    assert ("exceeds the expandable-segment reserve of 1024.00 MiB" in text) is is_hinted
    assert ("expandable_segments is enabled." in text) is not is_hinted
