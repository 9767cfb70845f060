"""Ops on PyTorch have the same results as on the model, and all results are recorded."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from allocsim.core import RELEASES
from allocsim.units import GIB, MIB
from allocsim.verify import Script, torch_player
from allocsim.verify.generator import make_script
from allocsim.verify.player import play, play_defined
from allocsim.verify.script import Op, golden_segment, golden_stats, stream_numbers

from .fake_torch import FakeTorch

OLD = (
    "_cuda_beginAllocateToPool",
    "_cuda_endAllocateCurrentStreamToPool",
    "_cuda_cudaCachingAllocator_set_allocator_settings",
)
NEW = (
    "_cuda_beginAllocateCurrentThreadToPool",
    "_cuda_endAllocateToPool",
    "_accelerator_setAllocatorSettings",
)
BASE = 1 << 44


def answer(script: Script, release: str, names: tuple[str, str, str] = NEW) -> dict[str, Any]:
    asked = json.loads(json.dumps({"ops": script.ops, "is_phantom": False}))
    return torch_player.play(FakeTorch(script, release, names), asked)


@pytest.mark.parametrize(("release", "names"), [("2.6", OLD), ("2.15", NEW)])
def test_player_of_torch_gives_the_results_of_the_model(
    release: str, names: tuple[str, str, str]
) -> None:
    for seed in range(25):
        script = make_script(seed, RELEASES[release], with_marks=False)
        script, _, _ = play_defined(replace(script, base_address=BASE), release)
        expected = answer(script, release, names)
        ours = play(script, release, handles=expected["handles"])
        number = stream_numbers(expected["handles"])
        assert expected["addresses"] == ours.addresses, seed
        assert expected["messages"] == ours.messages, seed
        assert (expected["stopped"] or [None])[0] == (ours.stopped or [None])[0], seed
        assert golden_stats(expected["stats"]) == ours.stats, seed
        assert [golden_segment(s, number) for s in expected["segments"]] == ours.segments, seed
        assert [[*e[:3], number(e[3])] for e in expected["trace"]] == ours.trace, seed


def test_driver_conditions_are_those_before_the_first_op() -> None:
    expected = answer(Script([["a", 1, 512, 0]], 3 * GIB), "2.15")
    assert (expected["free"], expected["total"]) == (3 * GIB, 3 * GIB)


def test_streams_are_identified_by_their_handles() -> None:
    ops: list[Op] = [["a", 1, 512, 9], ["r", 1, 4]]
    handles = answer(Script(ops, GIB), "2.15")["handles"]
    assert sorted(handles) == [0, 4, 9]
    assert handles[0] == 0
    assert len(set(handles.values())) == 3


def test_reused_id_frees_its_block() -> None:
    ops: list[Op] = [["a", 1, 30 * MIB, 0], ["a", 1, 0, 0], ["f", 1], ["f", 1], ["r", 1, 0]]
    expected = answer(Script(ops, GIB, base_address=BASE), "2.15")
    assert expected["addresses"] == [BASE, None]
    assert expected["stats"]["allocated_bytes.all.current"] == 0


def test_pytorch_error_ends_the_script() -> None:
    ops: list[Op] = [["S"], ["P", "e", 7], ["a", 1, 512, 0]]
    expected = answer(Script(ops, GIB), "2.15")
    assert expected["stopped"][0] == 1
    assert "pool (0, 7) is ended" in expected["stopped"][1]
    assert expected["addresses"] == []
