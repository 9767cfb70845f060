"""Memory of a card by owner: recorded, printed by PyTorch, or estimated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from allocsim.recording import Provenance, card_memory, load
from allocsim.units import GIB, MIB

H200 = 150_109_880_320
GPU = Path(__file__).parents[3] / "shared" / "gpu"
TEXT = (
    "CUDA out of memory. Tried to allocate 646.00 MiB. GPU 0 has a total capacity of 139.80 GiB of "
    "which 359.56 MiB is free. {}Of the allocated memory 6.04 GiB is allocated by PyTorch, and "
    "1008.08 MiB is reserved by PyTorch but unallocated."
)
OWN = "Including non-PyTorch memory, this process has 7.75 GiB memory in use. "


def made(outside: int, text: str = "", total: int = H200, **known: Any) -> Provenance:
    return Provenance(device_memory=total, context_memory=outside, oom_text=text, **known)


def test_recorded_card_memory_is_used_unchanged() -> None:
    card = card_memory(made(133 * GIB, other_memory=132 * GIB, other_processes=2))
    assert card is not None
    assert (card.others, card.context, card.is_estimated) == (132 * GIB, GIB, False)
    assert card.sentence == (
        "2 other processes hold 132.00 GiB of 139.80 GiB on this card; 7.80 GiB were left for this "
        "program"
    )


def test_error_text_gives_the_memory_of_each_process() -> None:
    text = TEXT.format("Process 600 has 100.00 GiB memory in use. Process 601 has 31.69 GiB memory "
                       f"in use. {OWN}")  # fmt: skip
    card = card_memory(made(132 * GIB + 400 * MIB, text))
    assert card is not None
    assert (card.processes, card.is_estimated) == (2, False)
    assert card.others == 100 * GIB + int(31.69 * GIB)


def test_oom_text_with_only_its_own_process_has_no_others() -> None:
    card = card_memory(made(700 * MIB, TEXT.format(OWN)))
    assert card is not None
    assert (card.others, card.is_shared, card.sentence) == (0, False, "")


def test_oom_text_without_its_own_process_is_ignored() -> None:
    """In a container, this program is one of the numbered processes."""
    card = card_memory(made(8 * GIB, TEXT.format("Process 600 has 7.75 GiB memory in use. ")))
    assert card is not None
    assert card.is_estimated


@pytest.mark.parametrize(
    ("total", "outside", "is_shared"),
    [
        (H200, 870 * MIB, False),  # a context
        (H200, 3 * GIB, False),  # as likely a context and NCCL's buffers
        (H200, 9 * GIB, True),
        (24 * GIB, 2 * GIB, False),
        (24 * GIB, 3 * GIB, True),
    ],
)
def test_estimated_memory_of_others_is_notable_from_the_larger_limit(
    total: int, outside: int, is_shared: bool
) -> None:
    card = card_memory(made(outside, total=total))
    assert card is not None and card.is_estimated
    assert card.is_shared is is_shared
    assert card.others_low <= card.others <= card.others_high <= outside
    assert card.others + card.context == outside


@pytest.mark.parametrize(
    ("total", "others", "is_shared"),
    [(H200, GIB, True), (H200, GIB - 1, False), (8 * GIB, 410 * MIB, True)],
)
def test_recorded_memory_of_others_is_notable_from_1_gib_or_5_percent(
    total: int, others: int, is_shared: bool
) -> None:
    card = card_memory(made(others + 500 * MIB, total=total, other_memory=others))
    assert card is not None
    assert card.is_shared is is_shared


def test_card_memory_of_a_phantom_has_no_other_processes() -> None:
    phantom = Provenance(device_memory=24 * GIB, context_memory=4 * GIB, is_phantom=True)
    card = card_memory(phantom)
    assert card is not None and not card.is_shared
    assert card_memory(Provenance()) is None
    assert card_memory(None) is None


@pytest.mark.skipif(not GPU.is_dir(), reason="needs the recordings of a real card")
@pytest.mark.parametrize(
    ("name", "left_mib"),
    [("default-exit", 9301), ("small-oom", 8301), ("small-exit", 8301), ("expandable-oom", 7701)],
)
def test_card_memory_of_a_shared_real_card(name: str, left_mib: int) -> None:
    """The other program received the number of bytes to leave free."""
    card = card_memory(load(GPU / "oom" / f"{name}.npz.gz").provenance)
    assert card is not None and card.is_shared
    truth = H200 - left_mib * MIB
    if card.is_estimated:
        assert card.others_low <= truth <= card.others_high
    else:
        assert abs(card.others - truth) < 16 * MIB  # the text has two decimals
