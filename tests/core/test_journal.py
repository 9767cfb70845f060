"""The packed columns of the journal."""

from __future__ import annotations

from itertools import product

import pytest

from allocsim.core.journal import (
    OWN,
    OWN_MINUS,
    OWN_PLUS,
    OWN_STEP,
    SHORT,
    decode_long,
    decode_short,
    decode_wait,
    encode,
    encode_wait,
)


@pytest.mark.parametrize("is_small", [False, True])
def test_long_form_round_trips(is_small: bool) -> None:
    for splits, split_bytes in product(range(-2, 2), (-(1 << 40), -512, 512, 20 << 20)):
        packed = encode(is_small, splits, split_bytes)
        assert abs(packed) >= SHORT
        assert packed & 1 == is_small
        assert decode_long(packed) == (splits, split_bytes)


@pytest.mark.parametrize("is_small", [False, True])
@pytest.mark.parametrize("size", [512, -512])
def test_short_form_has_the_bytes_of_the_block(is_small: bool, size: int) -> None:
    """A malloc takes its bytes from inactive split, and a free adds them."""
    for packed, splits in ((OWN_MINUS, -1), (OWN, 0), (OWN_PLUS, 1), (OWN_PLUS - OWN_STEP, 0)):
        assert abs(packed + is_small) < SHORT
        assert decode_short(packed + is_small, size) == (splits, -size)
    assert decode_short(encode(is_small, 0, 0), size) == (0, 0)


@pytest.mark.parametrize("is_small", [False, True])
@pytest.mark.parametrize("size", [512, -512])
def test_waits_round_trip(is_small: bool, size: int) -> None:
    assert decode_wait(encode_wait(is_small, size)) == size
    assert encode_wait(is_small, size) & 1 == is_small
