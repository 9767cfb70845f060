"""Estimated savings, compared with the same programs by law, and the changes that replays prove."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from allocsim import explain_recording, load, top
from allocsim.analysis.top import top_of_run
from allocsim.editing import savings_of
from allocsim.fitting import Ran, Task, model_of, run_by_law
from allocsim.phantom import find_gpu

TRACES = Path(__file__).parents[2] / "traces"
FULL = TRACES / "gpt2-expandable-oom-torch2.15.pickle.gz"
GPU = replace(find_gpu("A100 80GB"), memory=1 << 40)
TASKS: list[tuple[str, dict[str, Any]]] = [
    ("gpt2", {"batch": 8}),
    ("Llama-3.2-1B", {"batch": 2, "seq": 2048}),
    ("Qwen2.5-0.5B", {"batch": 4}),
    ("SmolLM2-135M", {"batch": 4, "seq": 512, "dtype": "fp32"}),
    ("BERT-base", {"batch": 16, "seq": 512}),
    ("Gemma-2-2B", {"batch": 2}),
]


def task_of(case: tuple[str, dict[str, Any]]) -> Task:
    name, options = case
    return Task(model=model_of(name), **options)


def estimates_of(ran: Ran) -> dict[str, tuple[int, int]]:
    """Return the range of each estimated saving at the peak of a run."""
    held = top_of_run(ran.prepared, ran.device_run, ran.busiest, by="category")
    found = savings_of(held.categories, held.at.phase)
    return {each.change.split()[0]: (each.low_bytes or 0, each.high_bytes or 0) for each in found}


@pytest.mark.parametrize("case", TASKS, ids=lambda case: case[0])
def test_checkpointing_saves_what_was_estimated(case: tuple[str, dict[str, Any]]) -> None:
    task = task_of(case)
    ran, changed = (run_by_law(each, GPU) for each in (task, replace(task, checkpointing=True)))
    low, high = estimates_of(ran)["checkpoint"]
    assert low <= ran.peak_allocated_bytes - changed.peak_allocated_bytes <= high


@pytest.mark.parametrize("case", TASKS, ids=lambda case: case[0])
def test_half_the_batch_saves_what_was_estimated(case: tuple[str, dict[str, Any]]) -> None:
    task = task_of(case)
    ran, changed = (run_by_law(each, GPU) for each in (task, replace(task, batch=task.batch // 2)))
    low, high = estimates_of(ran)["half"]
    assert low <= ran.peak_allocated_bytes - changed.peak_allocated_bytes <= high


def test_a_fused_optimizer_saves_the_copies_of_the_step() -> None:
    task = Task(model=model_of("Llama-3-8B"), seq=512)
    fused = replace(task, optimizer="adamw-fused")
    ran, changed = (run_by_law(each, GPU) for each in (task, fused))
    low, high = estimates_of(ran)["optimizer"]
    assert low <= ran.peak_allocated_bytes - changed.peak_allocated_bytes <= high


def test_a_full_card_is_explained_with_changes_that_make_it_fit() -> None:
    _, (device,) = explain_recording(load(FULL))
    missing = device.shortages[-1].missing_bytes
    assert missing is not None
    first = device.savings[0]
    assert first.change == "checkpoint the activations of every layer"
    assert first.is_enough == (first.low_bytes is not None and first.low_bytes >= missing)
    assert not first.is_proved


def test_a_fragmented_card_has_a_setting_instead_of_changes() -> None:
    _, (device,) = explain_recording(load(TRACES / "gpt2-ragged-oom-torch2.15.pickle.gz"))
    assert device.recommendation.best is not None
    assert device.savings == ()


def test_owners_at_an_error_come_with_changes_and_at_the_peak_without() -> None:
    recording = load(FULL)
    assert top(recording, "oom").savings
    assert top(recording, "peak").savings == ()


def test_small_categories_have_no_change() -> None:
    found = savings_of({"parameters": 1000, "optimizer state": 10}, "forward")
    assert [each.change for each in found] == []
