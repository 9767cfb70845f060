"""Changes with which a task fits, tried by law, by formula and by simulated programs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from allocsim import CachingAllocator
from allocsim.errors import ConfigError
from allocsim.fitting import (
    Advice,
    Change,
    Fit,
    Task,
    advise,
    estimate,
    fit,
    fit_command,
    model_of,
    run_by_law,
)
from allocsim.fitting.advice import stored_in
from allocsim.fitting.by_law import peak_by_law
from allocsim.phantom import context_range, find_gpu
from allocsim.units import MIB
from tests.cli.conftest import Done, cli
from tests.fitting.conftest import Pretended, pretend

__all__ = ["cli", "pretend"]  # fixtures

Cli = Callable[..., Done]
CARD = find_gpu("RTX 4090")


def task(name: str, **more: object) -> Task:
    return Task(model=model_of(name), **more)  # type: ignore[arg-type]


def advice_on(question: Task, engine: str = "laws") -> Advice:
    return advise(fit(question, CARD, engine=engine))


def options(found: Advice) -> list[str]:
    return [change.options for change in found.changes]


def test_qlora_that_does_not_fit_gets_changes() -> None:
    found = advice_on(task("Llama-3-8B", lora=16, quant="nf4", batch=8), engine="formula")
    assert found.changes
    assert not any("--fsdp" in each for each in options(found))


def test_a_run_on_a_card_with_equal_requests_is_known_for_a_larger_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    question = task("Qwen2.5-32B", is_training=False, decode=2)
    found = fit(question, find_gpu("A100 40GB"), engine="laws")
    assert isinstance(found, Fit)
    assert found.unlimited is not None
    larger = find_gpu("A100 80GB")
    ran = run_by_law(question, larger)
    monkeypatch.setattr("allocsim.fitting.by_law.requests_by_law", None)
    known = peak_by_law(question, larger, known=found.unlimited)
    assert known == (ran.peak_reserved_bytes, ran.is_out_of_memory)
    with pytest.raises(TypeError):  # another number of multiprocessors may change requests
        peak_by_law(question, find_gpu("H100"), known=found.unlimited)


@pytest.mark.slow
def test_every_change_by_law_completes_beside_the_largest_context() -> None:
    found = advice_on(task("Llama-3-8B", lora=16))
    four_bits = "--checkpointing --quant nf4-double"
    assert options(found) == ["--checkpointing", four_bits, "--seq 640", '--gpu "RTX 5090"']
    for change in (each for each in found.changes if each.options != four_bits):
        assert change.engine == "laws"
        tight = replace(change.gpu, context_memory=context_range(change.gpu)[1])
        ran = run_by_law(change.task, tight)
        assert not ran.is_out_of_memory
        assert ran.peak_reserved_bytes == change.peak_reserved_bytes
        assert change.spare_bytes == tight.room - ran.peak_reserved_bytes >= 0
    longer = replace(found.changes[2].task, seq=704)
    assert run_by_law(longer, replace(CARD, context_memory=687 * MIB)).is_out_of_memory


def test_changes_that_keep_the_updates_come_first() -> None:
    effects = [change.effect for change in advice_on(task("gpt2", batch=32)).changes]
    assert effects[0].startswith("same updates")
    assert effects == sorted(effects, key=lambda effect: not effect.startswith("same updates"))


def test_a_change_without_a_law_is_tried_by_formula_and_says_so() -> None:
    found = advice_on(task("Llama-3.2-1B", batch=16))
    first = found.changes[0]
    assert (first.options, first.engine) == ("--batch 2 --accumulate 8", "formula")
    assert estimate(first.task, CARD).fits


def test_advice_has_no_change_if_the_task_fits() -> None:
    assert not advice_on(task("gpt2")).changes


@pytest.mark.parametrize(
    ("more", "other", "fits"),
    [
        ({"dtype": "bf16"}, "--dtype autocast-bf16", False),
        ({"dtype": "autocast-bf16"}, "--dtype bf16", True),
        ({"dtype": "fp32"}, "--dtype bf16", True),
    ],
)
def test_advice_names_the_other_precision_if_the_verdict_differs(
    more: dict[str, str], other: str, fits: bool
) -> None:
    found = advice_on(task("Llama-3.2-1B", **more))
    assert found.alternative is not None
    assert (found.alternative.options, found.alternative.fits) == (other, fits)
    assert advice_on(task("gpt2", **more)).alternative is None


@pytest.mark.parametrize(
    ("more", "stored"),
    [
        ({}, "weights, gradients and optimizer state in bf16"),
        (
            {"dtype": "autocast-fp16"},
            "weights, gradients and optimizer state in fp32, computed in fp16",
        ),
        ({"optimizer": "sgd"}, "weights and gradients in bf16"),
        ({"optimizer": "adam8bit"}, "weights and gradients in bf16, optimizer state in 8 bits"),
        ({"lora": 8}, "frozen weights in bf16, adapters in fp32"),
        ({"lora": 8, "quant": "nf4"}, "frozen weights in nf4, adapters in fp32"),
        ({"is_training": False, "prompt": 64}, "weights and cache in bf16"),
    ],
)
def test_stored_in_describes_the_precision(more: dict[str, object], stored: str) -> None:
    assert stored_in(task("gpt2", **more)) == stored


def test_changes_of_an_estimate_fit_with_their_upper_end() -> None:
    found = advise(fit(task("Qwen3-8B"), CARD, engine="formula"))
    assert options(found) == ["--checkpointing --lora 16", '--gpu "H200"']
    assert all(estimate(change.task, change.gpu).fits for change in found.changes)


def test_advice_for_serving_has_fewer_requests_and_shorter_prompts() -> None:
    asked = task("Llama-3-8B", is_training=False, batch=64, prompt=4096, decode=8)
    found = advise(fit(asked, CARD, engine="formula"))
    by_name = {change.options.split()[0]: change for change in found.changes}
    assert {"--batch", "--prompt", "--gpu"} <= set(by_name)
    more = by_name["--batch"].task
    assert estimate(more, CARD).fits
    assert not estimate(replace(more, batch=more.batch + 1), CARD).fits


def test_changes_are_tried_by_programs_where_programs_answer(
    pretend: Callable[..., Pretended],
) -> None:
    def play(allocator: CachingAllocator, program: str) -> int:
        """Allocate 30 GiB, or 10 GiB with checkpointing."""
        size = 10 if "gradient_checkpointing" in program else 30
        allocator.malloc(size * 1024 * MIB)
        return 0

    pretend(play)
    found = advise(fit(task("gpt2", batch=2), CARD))
    first: Change = found.changes[0]
    assert (first.options, first.engine) == ("--checkpointing", "program")
    assert first.peak_reserved_bytes == 10 * 1024 * MIB
    assert found.changes[-1].gpu.memory > 30 * 1024 * MIB
    with pytest.raises(ConfigError, match="no options to change"):
        advise(fit_command(["python", "train.py"], CARD))


def test_the_screen_and_the_json_have_the_changes(cli: Cli) -> None:
    small = ("Qwen2.5-0.5B", "--device-memory", "3GiB")
    command = ("fit", *small, "--lora", "16", "--engine", "laws")
    text = cli(*command).out
    assert "Make it fit     --checkpointing: 2.91 GiB, same updates" in text
    assert len(text.splitlines()) <= 22
    document = json.loads(cli(*command, "--json").out)
    assert document["changes"][0]["options"] == "--checkpointing"
    assert document["stored"] == "frozen weights in bf16, adapters in fp32"
    assert document["alternative"] is None
