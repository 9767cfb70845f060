"""Workspaces of cuDNN's attention, compared with the requests on a real H200.

`traces/h200/kernels.json` has the requests of scaled_dot_product_attention for 45 shapes, with
PyTorch 2.11 and cuDNN 9.19; the others are from recordings of the same card.
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from allocsim.phantom import Stubs
from tests.phantom.dnn import Backend, run_over_h200
from tests.pythons import NEEDS_TORCH

KERNELS = Path(__file__).parents[2] / "traces" / "h200" / "kernels.json"
ROWS: list[dict[str, Any]] = json.loads(KERNELS.read_text())["attention"]
BY_CUDNN = [row for row in ROWS if row["dtype"] != "float32"]
FLOAT = 4


@pytest.fixture
def backend(libraries: Stubs) -> Backend:
    return Backend(libraries)


def sizes_of(row: dict[str, Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the sizes of queries and keys."""
    return (
        tuple(row[name] for name in ("b", "h", "s", "d")),
        tuple(row[name] for name in ("b", "h", "t", "d")),
    )


def released_at_once(requests: list[int]) -> int:
    """Return the size of the one request that is released immediately."""
    (size,) = (size for size, after in pairwise(requests) if size == -after)
    return size


def test_forward_requests_equal_the_card(backend: Backend) -> None:
    for row in BY_CUDNN:
        taken = released_at_once(row["forward"])
        assert backend.workspace(backend.attention(*sizes_of(row))) == taken
        assert backend.workspace(backend.attention_in_parts(*sizes_of(row))) == taken


def test_backward_requests_equal_the_card(backend: Backend) -> None:
    """PyTorch adds the float32 sums: the gradient of the queries and one sum per row."""
    trained = [row for row in BY_CUDNN if row["train"]]
    assert len(trained) == 22
    for row in trained:
        accumulated = FLOAT * row["b"] * row["h"] * row["s"] * (row["d"] + 1)
        plan = backend.workspace(backend.attention_backward(*sizes_of(row)))
        assert plan + accumulated == released_at_once(row["backward"])


@pytest.mark.parametrize(
    ("queries", "keys", "taken"),
    [
        ((4, 14, 1024, 64), (4, 2, 1024, 64), 29_589_760),
        ((2, 12, 1024, 128), (2, 2, 1024, 128), 25_264_384),
        ((1, 12, 4096, 128), (1, 2, 4096, 128), 50_528_512),
        ((8, 32, 512, 64), (8, 8, 512, 64), 67_633_408),
        ((1, 32, 2048, 128), (1, 8, 2048, 128), 67_371_264),
    ],
    ids=["Qwen2.5-0.5B", "Qwen2.5-1.5B", "Qwen2.5-1.5B, long", "Llama-3.2-1B", "Llama-3-8B"],
)
def test_heads_that_share_keys_have_separate_gradients(
    backend: Backend, queries: tuple[int, ...], keys: tuple[int, ...], taken: int
) -> None:
    batch, heads, length, values = queries
    accumulated = FLOAT * batch * heads * length * (values + 1)
    assert backend.workspace(backend.attention_backward(queries, keys)) + accumulated == taken


@pytest.mark.parametrize(
    ("queries", "keys", "taken"),
    [
        ((1, 28, 1, 128), (1, 4, 3001, 128), 233_088),
        ((1, 28, 1, 128), (1, 4, 3064, 128), 233_088),
        ((8, 16, 1, 64), (8, 8, 853, 64), 135_296),
        ((8, 16, 1, 64), (8, 8, 932, 64), 135_296),
        ((8, 16, 1, 64), (8, 8, 147, 64), 0),
        ((8, 16, 1, 64), (8, 8, 153, 64), 0),
    ],
)
def test_decoding_requests_memory_for_the_parts_of_long_texts(
    backend: Backend, queries: tuple[int, ...], keys: tuple[int, ...], taken: int
) -> None:
    assert backend.workspace(backend.attention(queries, keys)) == taken


def test_workspace_is_a_guess_unless_the_card_was_measured(backend: Backend) -> None:
    """The device of these tests is similar to an A100."""
    backend.workspace(backend.attention((1, 8, 64, 64), (1, 8, 64, 64)))
    assert "cuDNN" in backend.device.guesses()


_PROGRAM = """
import ctypes, json, sys, torch
from torch.nn.functional import scaled_dot_product_attention

SIGNS = {"alloc": 1, "free_requested": -1}

def requests():
    entries = torch.cuda.memory._snapshot()["device_traces"][0]
    return [SIGNS[e["action"]] * e["size"] for e in entries if e["action"] in SIGNS]

def attend(row):
    made = {"device": "cuda", "dtype": getattr(torch, row["dtype"]), "requires_grad": row["train"]}
    q, k, v = (torch.empty(row["b"], row["h"], row[n], row["d"], **made) for n in "stt")
    named = {"device": "cuda", "dtype": made["dtype"]}
    mask = torch.zeros(row["b"], 1, row["s"], row["t"], **named) if row["mask"] else None
    with torch.set_grad_enabled(row["train"]):
        before = len(requests())
        out = scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=row["causal"])
        forward = requests()[before:]
    if not row["train"]:
        return None, forward, None
    gradient = torch.empty_like(out)
    node, before = type(out.grad_fn).__name__, len(requests())
    out.backward(gradient)
    return node, forward, requests()[before:]

torch.cuda.init()
torch.cuda.memory._record_memory_history("all", context=None)
for row in json.load(open(sys.argv[1]))["attention"]:
    print(json.dumps(attend(row)))
guesses = ctypes.CDLL(None).device_guesses
guesses.restype = ctypes.c_char_p
print(json.dumps(guesses().decode()))
"""


@pytest.mark.slow
@NEEDS_TORCH
def test_pytorch_makes_the_requests_of_the_card() -> None:
    done = run_over_h200(_PROGRAM, KERNELS)
    *made, guessed = (json.loads(line) for line in done.stdout.splitlines())
    assert guessed == ""
    assert made == [[row["node"], row["forward"], row["backward"]] for row in ROWS]
