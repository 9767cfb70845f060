"""Generation on a phantom ends by length, because no value reports that a text is complete."""

from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path

import pytest

from allocsim.phantom.assumptions import end_at_max_length
from tests.pythons import NEEDS_TORCH, PYTHONS


class Tokens:
    """Ids of `length` tokens."""

    def __init__(self, length: int) -> None:
        self.shape = (1, length)


def transformers() -> types.SimpleNamespace:
    """Return a fake module with the classes that are patched."""

    class MaxLengthCriteria:
        max_length = 5

        def __call__(self, _ids: Tokens, _scores: object) -> str:
            return "a tensor"

    class GenerationMixin:
        def _has_unfinished_sequences(self, this_peer_finished: bool) -> bool:
            return not this_peer_finished

    return types.SimpleNamespace(
        MaxLengthCriteria=MaxLengthCriteria, GenerationMixin=GenerationMixin
    )


def generated(module: types.SimpleNamespace, most: int) -> int:
    """Return the number of tokens that generate() makes on a device that never ends a text."""
    model, criteria, length = module.GenerationMixin(), module.MaxLengthCriteria(), 2
    while model._has_unfinished_sequences(this_peer_finished=False) and length < most:
        length += 1
        assert criteria(Tokens(length), None) == "a tensor"
    return length


def test_generation_ends_at_the_requested_length() -> None:
    module = transformers()
    assert generated(module, 100) == 100, "unpatched, only a value would end it"
    end_at_max_length(module)
    assert generated(module, 100) == 5
    assert generated(module, 100) == 5, "the next text starts at zero"


def test_end_at_max_length_ignores_an_unknown_release() -> None:
    module = types.SimpleNamespace(MaxLengthCriteria=object)
    end_at_max_length(module)
    assert vars(module) == {"MaxLengthCriteria": object}


GENERATES = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM
sizes = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4)
with torch.device("cuda"):
    model = LlamaForCausalLM(LlamaConfig(vocab_size=500, **sizes)).eval()
ids = torch.ones((2, 40), dtype=torch.long, device="cuda")
print(tuple(model.generate(ids, max_new_tokens=30, do_sample=False).shape))
"""


@pytest.mark.slow
@NEEDS_TORCH
def test_transformers_generates_the_requested_tokens(tmp_path: Path) -> None:
    out, program = str(tmp_path / "x.pickle"), str(tmp_path / "program.py")
    Path(program).write_text(GENERATES)
    command = [sys.executable, "-m", "allocsim", "record", "--gpu", "L4", "-o", out]
    done = subprocess.run(
        [*command, "--max-seconds", "300", "--", PYTHONS[0], program],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "(2, 70)\n"
