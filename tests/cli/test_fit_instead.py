"""Answers of `fit` by formula, where PyTorch is missing and the program has no law."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from allocsim.fitting import runner
from allocsim.phantom import UnavailableError
from tests.cli.conftest import Done

Cli = Callable[..., Done]
ON = ("--gpu", "H100")


@pytest.fixture(autouse=True)
def _no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_python(_: str | None) -> None:
        raise UnavailableError("python has no PyTorch; expected a CUDA build of torch")

    monkeypatch.setattr(runner, "find_python", find_python)


def test_training_without_a_law_is_answered_by_formula(cli: Cli) -> None:
    done = cli("fit", "Qwen/Qwen3-0.6B", *ON)
    assert done.code == 0
    assert "Qwen3-0.6B, 1 x 1,024 tokens" in done.out
    assert "2 + 2 + 4 bytes per parameter" in done.out
    assert done.err.startswith("allocsim: an estimate by formula, because PyTorch is missing")
    asked = ("--engine", "formula", "--seq", "1024", "--dtype", "bf16", "--kernels", "eager")
    assert cli("fit", "Qwen/Qwen3-0.6B", *ON, *asked).out == done.out


def test_serving_without_a_law_is_answered_by_formula(cli: Cli) -> None:
    done = cli("fit", "openai/gpt-oss-20b", *ON, "--serve", "--json")
    answer = json.loads(done.out)
    assert (done.code, answer["server"], answer["fits"]) == (0, "transformers", True)
    text = cli("fit", "google/gemma-3-1b-it", *ON, "--serve", "--dtype", "fp32").out
    assert "fp32: 3.72 GiB" in text


def test_a_program_with_a_law_is_answered_by_its_law(cli: Cli) -> None:
    done = cli("fit", "Llama-3.2-1B", *ON, "--seq", "904")
    assert "law" in done.out
    assert done.err == ""


@pytest.mark.parametrize(
    "more",
    [
        ("--lora", "8"),
        ("--engine", "program"),
        ("--python", "python3"),
        ("--serve", "--attention", "eager"),
        ("--gpu", "A100 80GB"),
    ],
)
def test_a_question_that_the_formula_cannot_answer_still_needs_pytorch(
    cli: Cli, more: tuple[str, ...]
) -> None:
    done = cli("fit", "Qwen3-0.6B", *ON, *more)
    assert done.code == 2
    assert "has no PyTorch" in done.err
