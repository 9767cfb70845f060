"""Search for the fewest layers to checkpoint."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from allocsim.core import CachingAllocator
from allocsim.errors import ConfigError
from allocsim.fitting import Task, fewest_checkpointed, model_of, program_of, run_program
from allocsim.phantom import context_range, find_gpu
from allocsim.units import GIB, MIB
from tests.cli.conftest import Done, cli
from tests.fitting.conftest import Pretended
from tests.pythons import NEEDS_TORCH, pythons_of

__all__ = ["cli"]  # a fixture

CARD = find_gpu("RTX 4090")
LAYERS = 12
"""Layers of gpt2."""


def of_layers(each: int, least: int) -> Callable[[CachingAllocator, str], int]:
    """Return a program that needs `least` bytes and `each` more for a layer that is kept whole."""

    def play(allocator: CachingAllocator, program: str) -> int:
        found = re.search(r"layers\[(\d+):\]", program)
        is_checkpointed = "gradient_checkpointing_enable" in program
        n = int(found[1]) if found else LAYERS * is_checkpointed
        allocator.malloc(least + each * (LAYERS - n))
        return 0

    return play


@pytest.mark.parametrize(("least", "n"), [(8 * GIB, 0), (20 * GIB, 10), (22 * GIB, 12)])
def test_fewest_checkpointed_layers_fit_and_one_less_does_not(
    least: int, n: int, pretend: Callable[..., Pretended]
) -> None:
    pretend(of_layers(GIB, least))
    task, sentence = fewest_checkpointed(Task(model=model_of("gpt2"), checkpointing=True), [CARD])
    assert (task.checkpointing, task.checkpoint_layers) == (n > 0, n % LAYERS)
    assert sentence.startswith(f"checkpointing {n} of 12 layers is the least that fits")
    assert (f"with {n - 1} it runs out of memory" in sentence) is (n > 0)


def test_all_layers_are_checkpointed_if_not_even_these_suffice(
    pretend: Callable[..., Pretended],
) -> None:
    pretend(of_layers(MIB, 40 * GIB))
    task, sentence = fewest_checkpointed(Task(model=model_of("gpt2")), [CARD])
    assert (task.checkpointing, task.checkpoint_layers) == (True, 0)
    assert sentence == "checkpointing all 12 layers is too few"


def test_the_answer_names_the_number_of_layers(
    cli: Callable[..., Done], pretend: Callable[..., Pretended]
) -> None:
    pretend(of_layers(GIB, 20 * GIB))
    done = cli("fit", "gpt2", "--gpu", "RTX 4090", "--checkpoint-layers", "auto")
    assert "checkpointing 10 layers" in done.out
    assert "checkpointing 10 of 12 layers is the least that fits" in " ".join(done.out.split())


def test_the_program_checkpoints_the_first_layers() -> None:
    task = Task(model=model_of("gpt2"), checkpointing=True, checkpoint_layers=5)
    assert "for layer in layers[5:]:\n    layer.gradient_checkpointing = False" in program_of(task)
    with pytest.raises(ConfigError, match="checkpoint_layers 5 needs checkpointing"):
        Task(model=model_of("gpt2"), checkpoint_layers=5)


@pytest.mark.slow
@NEEDS_TORCH
@pytest.mark.parametrize("name", ["gpt2", "Llama-3.2-1B"])
def test_that_many_layers_fit_with_pytorch_and_one_less_does_not(name: str) -> None:
    python = pythons_of("2.15")[0]
    task = Task(model=model_of(name), batch=4, seq=1024, steps=2)
    whole, least = (
        run_program(replace(task, checkpointing=each), CARD, python=python)
        for each in (False, True)
    )
    # The card is between the peaks with no layer checkpointed and with all.
    memory = (whole.peak_reserved_bytes + least.peak_reserved_bytes) // 2
    card = replace(CARD, memory=memory + context_range(CARD)[1], context_memory=0)
    found, _ = fewest_checkpointed(task, [card], python=python)
    n = found.checkpoint_layers
    assert n > 1
    for layers, is_out in ((n, False), (n - 1, True)):
        ran = run_program(replace(found, checkpoint_layers=layers), CARD, python=python)
        assert (ran.peak_reserved_bytes > memory) is is_out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--find", "batch"), "is a search of its own"),
        (("--show-program",), "is a search of its own"),
        (("--gpu", "L4"), "those of one card"),
        (("--engine", "laws"), "there is no law for checkpoint_layers 6"),
    ],
)
def test_auto_is_refused_where_it_cannot_search(
    words: tuple[str, ...], sentence: str, cli: Callable[..., Done]
) -> None:
    done = cli("fit", "gpt2", "--gpu", "RTX 4090", "--checkpoint-layers", "auto", *words)
    assert done.code == 2
    assert sentence in done.err
