"""Every op is encoded as one line; an invalid op is refused with a sentence that names it."""

from __future__ import annotations

from typing import Any

import pytest

from allocsim.errors import ScriptError
from allocsim.verify.script import encode_ops


def test_encode_ops_gives_a_line_for_each_op() -> None:
    ops: list[list[Any]] = [
        ["a", 70, 1000, 0],
        ["a", "b", 0, 3],
        ["r", 70, 2],
        ["f", 70],
        ["f", "b"],
        ["s", 3],
        ["S"],
        ["e"],
        ["m", "0.97"],
        ["m", 1],
        ["P", "b", 4],
        ["P", "b", 4, True, False],
        ["P", "e", 4],
        ["P", "r", 4],
        ["c", "max_split_size_mb:64"],
        ["k"],
        ["K"],
    ]
    assert encode_ops(ops) == [
        "a 0 1000 0",
        "a 1 0 3",
        "r 0 2",
        "f 0",
        "f 1",
        "s 3",
        "S",
        "e",
        "m 0.97",
        "m 1.0",
        "b 4 0 0",
        "b 4 1 0",
        "x 4",
        "d 4",
        "c max_split_size_mb:64",
        "k",
        "K",
    ]


@pytest.mark.parametrize(
    ("op", "sentence"),
    [
        (["z", 1], "op 1: ['z', 1] is not an op that begins with a f r s m c P S e k K"),
        ([], "op 1: [] is not an op that begins with"),
        (["S", 1], "op 1: ['S', 1] is not an op that begins with"),
        (["a", 1, 5], "op 1: ['a', 1, 5] is not the 'a' op with its arguments"),
        (["a", 1, -5, 0], "op 1: -5 is not a size in bytes"),
        (["a", 1, 1 << 64, 0], f"op 1: {1 << 64} is not a size in bytes"),
        (["a", 1, 5, True], "op 1: True is not a stream number from 0 to 50000"),
        (["f", 9], "op 1: 9 is not an id that was allocated before"),
        (["m", "much"], "op 1: 'much' is not a memory fraction"),
        (["m", float("inf")], "op 1: inf is not a memory fraction"),
        (["P", "q", 1], "op 1: 'q' is not a pool op, one of b e r v l"),
        (["P", "b", "1"], "op 1: '1' is not a pool number"),
        (["c", "a\nb"], "op 1: 'a\\nb' is not an option string of one line"),
    ],
)
def test_invalid_op_is_named(op: list[Any], sentence: str) -> None:
    with pytest.raises(ScriptError) as caught:
        encode_ops([["a", 1, 512, 0], op])
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)
