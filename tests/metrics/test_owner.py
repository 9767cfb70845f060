"""Line of an entry: the user's own, or inferred from a neighbour."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from allocsim.metrics.owner import code_at, is_foreign
from allocsim.recording import Action, Frame, FrameInterner, Trace

TORCH = Frame("/venv/lib/python3.12/site-packages/torch/nn/modules/module.py", "_call_impl", 1798)
MODEL = Frame("/home/me/model.py", "forward", 19)
TRAIN = Frame("/home/me/train.py", "<module>", 27)


def trace_of(*stacks: Sequence[Frame], last: Action = Action.OOM) -> Trace:
    """Return a trace of allocations with these stacks and an error as the last entry."""
    interner = FrameInterner()
    numbers = [interner.stack(map(interner.frame, stack)) for stack in stacks]
    n = len(stacks)
    none = np.full(n, -1, dtype=np.int32)
    return Trace(
        device=0,
        action=np.array([Action.ALLOC] * (n - 1) + [last], dtype=np.uint8),
        addr=np.arange(n, dtype=np.uint64) * 512,
        size=np.full(n, 512, dtype=np.int64),
        stream=np.zeros(n, dtype=np.uint64),
        frames=np.array(numbers, dtype=np.int32),
        pool_id=none,
        frame_table=interner.table(),
    )


@pytest.mark.parametrize(
    "name",
    [
        "/x/site-packages/einops/einops.py",
        "C:\\py\\Lib\\site-packages\\torch\\_tensor.py",
        "/usr/lib/python3/dist-packages/numpy/core.py",
        "<frozen runpy>",
        "/opt/pytorch/torch/nn/functional.py",
        "??",
        "",
        "CUDACachingAllocator.cpp",
        "module.py",
    ],
)
def test_libraries_and_compiled_code_are_foreign(name: str) -> None:
    assert is_foreign(Frame(name, "f", 1))


@pytest.mark.parametrize("name", ["/home/me/train.py", "gpt.py", "C:\\me\\module.py", "/a/adam.py"])
def test_files_outside_libraries_belong_to_the_user(name: str) -> None:
    assert not is_foreign(Frame(name, "f", 1))


def test_the_innermost_own_frame_is_named_and_what_lies_inside_is_folded() -> None:
    code = code_at(trace_of([TORCH, TORCH, MODEL, TRAIN]), 0)
    assert code is not None
    assert (code.frame, code.folded, code.inferred) == (MODEL, 2, "")
    assert str(code) == "/home/me/model.py:19 forward"


def test_code_without_own_frames_shows_the_innermost_python_frame() -> None:
    code = code_at(trace_of([Frame("??", "at::empty", 0), TORCH]), 0)
    assert code is not None
    assert code.frame == TORCH


def test_the_line_of_a_server_is_in_its_package() -> None:
    """A spawned engine begins in a command line, and a starter of allocsim is no program either."""
    vllm = Frame("/x/site-packages/vllm/v1/worker/utils.py", "allocate_kv_cache", 596)
    begin = [
        Frame("/usr/lib/python3.12/multiprocessing/spawn.py", "spawn_main", 122),
        Frame("<string>", "<module>", 1),
    ]
    for outer in (begin, [Frame("/x/allocsim/phantom/start_vllm.py", "main", 70)]):
        code = code_at(trace_of([Frame("??", "at::empty", 0), TORCH, vllm, *outer]), 0)
        assert code is not None
        assert (code.frame, code.folded) == (vllm, 2)


def test_an_entry_without_frames_takes_those_before_it() -> None:
    code = code_at(trace_of([MODEL], [TRAIN], [], []), 3)
    assert code is not None
    assert code.frame == TRAIN
    assert code.inferred == "the allocation before it, entry 1"


def test_a_row_seen_before_tells_what_follows() -> None:
    # A step allocates at MODEL, TRAIN and then elsewhere; in the second step the last one fails.
    third = Frame("/home/me/loss.py", "loss", 5)
    code = code_at(trace_of([MODEL], [TRAIN], [third], [MODEL], [TRAIN], []), 5)
    assert code is not None
    assert code.frame == third
    assert code.inferred == "what followed the same allocations earlier in the recording"


def test_code_without_evidence_is_unknown() -> None:
    assert code_at(trace_of([], [], []), 2) is None
    assert code_at(trace_of([]), 0) is None
