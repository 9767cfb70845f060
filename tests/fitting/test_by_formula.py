"""Answers by formula, where PyTorch is missing and the program has no law."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from allocsim.errors import ConfigError, UnavailableError
from allocsim.fitting import Estimate, Fit, Task, estimate, fit, largest, model_of, run_by_law
from allocsim.fitting.by_engine import engine_for, missing_package
from allocsim.fitting.model import Configured
from allocsim.phantom import TorchInstall, find_gpu
from allocsim.units import GIB, TIB
from tests.cli.conftest import Done, cli

__all__ = ["cli"]  # a fixture

Cli = Callable[..., Done]
CARD = find_gpu("H100")
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")


@pytest.fixture
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the search for PyTorch by a search that finds none."""

    def find_install(_: str | None) -> None:
        raise UnavailableError("python has no PyTorch; expected a CUDA build of torch")

    monkeypatch.setattr("allocsim.fitting.by_engine.find_install", find_install)


def task(name: str = "SmolLM3-3B", **more: object) -> Task:
    return Task(model=model_of(name), **more)  # type: ignore[arg-type]


@pytest.mark.usefixtures("no_torch")
@pytest.mark.parametrize(
    "question",
    [
        task(),
        task(lora=8),
        task(lora=8, lora_targets=("q_proj", "v_proj")),
        task(optimizer="adam8bit"),
        task(lora=8, quant="nf4-double"),
        task("gpt-oss-20b", is_training=False),
        task("Gemma-3-1B", is_training=False, attention="eager"),
        task(parallel="fsdp", ranks=2),
        task(lengths=(100, 900)),
        task("Llama-3.2-1B", compiles=True),
    ],
    ids=lambda question: question.text,
)
def test_a_task_without_a_law_is_answered_by_formula(question: Task) -> None:
    found = fit(question, CARD)
    assert isinstance(found, Estimate)
    assert found.fits is True
    low, high = found.process_bytes
    assert 0 < low < high < CARD.memory
    assert found.reason.startswith("PyTorch is missing, and ")
    assert found.reason.endswith("pip install 'allocsim[fit]' runs the program itself")


def test_formula_counts_the_copies_of_experts_that_adapters_need() -> None:
    """The law has the requests of peft, which adds adapters to a copy of all experts of a layer."""
    model = model_of("Mixtral-8x7B")
    assert isinstance(model, Configured)
    model = replace(model, config={**model.config, "num_hidden_layers": 4})
    question = Task(model=model, lora=16, steps=2)
    law = run_by_law(question, CARD).peak_allocated_bytes
    assert estimate(question, CARD).peak_allocated_bytes == pytest.approx(law, rel=0.05)


@pytest.mark.parametrize(
    ("question", "engine", "reason"),
    [
        (
            task("Llama-3.2-1B", lora=8, quant="nf4"),
            "formula",
            "bitsandbytes is missing, and there is no law for quant 'nf4'; "
            "pip install bitsandbytes runs the program itself",
        ),
        (
            task("Llama-3.2-1B", lora=8),
            "laws",
            "peft is missing; pip install peft runs the program itself",
        ),
    ],
)
def test_a_program_whose_packages_are_missing_is_answered_without_it(
    question: Task, engine: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacks = (("bitsandbytes",) if question.quant else ("peft", "torchvision"),)
    install = TorchInstall("python", "2.15.0", "13.2", *lacks)
    monkeypatch.setattr("allocsim.fitting.by_engine.find_install", lambda _: install)
    missing = missing_package("auto", None, question)
    assert engine_for("auto", missing, question, CARD) == (engine, reason)
    assert fit(question, CARD).engine == engine
    assert missing_package("auto", None, task(lora=0)) is None


@pytest.mark.parametrize(
    ("name", "options", "allocated"),
    [
        ("Qwen2.5-0.5B", {"checkpointing": True}, 2_797_406_720),
        ("Qwen2.5-1.5B", {
            "optimizer": "paged-adamw8bit", "lora_targets": ATTENTION,
        }, 7_626_630_144),
        ("Qwen2.5-7B", {
            "optimizer": "paged-adamw8bit", "lora_targets": ATTENTION, "checkpointing": True,
        }, 10_098_775_040),
    ],
)  # fmt: skip
def test_formula_of_qlora_is_within_two_percent_of_the_program(
    name: str, options: dict[str, object], allocated: int
) -> None:
    """The peaks are of runs with bitsandbytes 0.50.2 over a phantom GPU."""
    found = estimate(task(name, lora=16, quant="nf4-double", seq=1024, **options), CARD)
    assert found.peak_allocated_bytes == pytest.approx(allocated, rel=0.02)


def test_copies_of_frozen_weights_are_those_of_one_layer_with_checkpointing() -> None:
    """The peak is of a run with PyTorch 2.15.0 over a phantom GPU."""
    adapted = task("Llama-3.2-3B", lora=16, dtype="autocast-bf16", checkpointing=True, seq=1024)
    assert estimate(adapted, CARD).peak_allocated_bytes == pytest.approx(15_877_474_304, rel=0.02)


def test_formula_has_no_partial_checkpointing() -> None:
    with pytest.raises(ConfigError, match="all layers or none"):
        estimate(task(checkpointing=True, checkpoint_layers=3), CARD)


@pytest.mark.usefixtures("no_torch")
def test_a_card_without_laws_is_answered_by_formula_beside_others(cli: Cli) -> None:
    done = cli("fit", "Llama-3.2-1B", "--seq", "904", "--gpu", "T4", "--gpu", "L4", "--json")
    cards = json.loads(done.out)["cards"]
    assert [card["engine"] for card in cards] == ["formula", "laws"]
    assert [card["fits"] for card in cards] == [None, True]
    text = cli("fit", "Llama-3.2-1B", "--seq", "904", "--gpu", "T4", "--gpu", "L4").out
    assert "Tesla T4: laws are for cards of compute capability 8.0" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.usefixtures("no_torch")
def test_fit_of_an_image_model_names_every_reason(cli: Cli) -> None:
    done = cli("fit", "resnet-50", "--gpu", "T4")
    assert done.code == 2
    assert "python has no PyTorch" in done.err
    assert "there is no law for ResNet-50" in done.err


@pytest.mark.usefixtures("no_torch")
def test_fit_never_replaces_a_requested_interpreter_or_engine() -> None:
    with pytest.raises(UnavailableError, match="has no PyTorch"):
        fit(task(), CARD, python="python3")
    with pytest.raises(ConfigError, match="no law"):
        fit(task(), CARD, engine="laws")
    assert fit(task("Llama-3.2-1B", seq=904), CARD, engine="formula").engine == "formula"


@pytest.mark.usefixtures("no_torch")
def test_fit_by_formula_refuses_to_keep_a_recording(cli: Cli) -> None:
    done = cli("fit", "SmolLM3-3B", "--gpu", "H100", "-o", "run.pickle")
    assert done.code == 2
    assert "a formula makes no recording to keep" in done.err


@pytest.mark.usefixtures("no_torch")
def test_the_largest_size_by_formula_is_the_last_whose_upper_end_fits() -> None:
    card = find_gpu("RTX 4090")
    found = largest(task(lora=8), "seq", card)
    assert found.engine == "formula"
    for more, fits in ((0, True), (1, None)):
        at = task(lora=8, seq=found.value + more)
        assert estimate(at, card).fits is fits


QUESTIONS = [
    task(name, batch=batch, lora=lora, checkpointing=checkpointing, optimizer=optimizer)
    for name in ("Llama-3.2-1B", "Llama-3-8B", "Qwen2.5-1.5B")
    for batch in (1, 4)
    for lora in (0, 16)
    for checkpointing in (False, True)
    for optimizer in ("adamw", "adamw-fused")
]


@pytest.mark.parametrize(
    "question",
    [
        pytest.param(each, marks=[] if number % 5 == 0 else pytest.mark.slow, id=each.text)
        for number, each in enumerate(QUESTIONS)
    ],
)
def test_the_tensors_of_the_formula_are_those_of_the_program(question: Task) -> None:
    card = replace(find_gpu("A100 80GB"), memory=TIB)
    try:
        ran = run_by_law(question, card)
    except ConfigError as error:
        pytest.skip(str(error))
    counted = sum(part.low for part in estimate(question, card).parts[:-2])
    assert counted == pytest.approx(ran.peak_allocated_bytes, rel=0.02)


def test_models_that_need_eager_attention_get_it_with_a_note() -> None:
    assert task("gpt-oss-20b").attention == task("Gemma-2-2B").attention == "eager"
    assert task("Gemma-3-1B").attention == task().attention == "sdpa"
    (note,) = estimate(task("gpt-oss-20b"), CARD).notes
    assert note == "attention is eager, because transformers runs this model with no fused kernel"
    by_law = fit(task("Gemma-2-2B"), CARD, engine="laws")
    assert isinstance(by_law, Fit)
    assert note in by_law.notes


def test_a_range_fits_only_with_its_upper_end() -> None:
    low, high = estimate(task(), CARD).process_bytes
    for memory, fits in ((high, True), (high - 1, None), (low, None), (low - 1, False)):
        found = estimate(task(), replace(CARD, memory=memory, context_memory=GIB // 2))
        assert found.fits is fits
    words = [
        estimate(task(), replace(CARD, memory=memory)).headline().split(" NVIDIA")[0]
        for memory in (high, low, low - 1)
    ]
    assert words == ["fits", "may not fit", "does not fit"]


@pytest.mark.parametrize(
    "words",
    [
        ("SmolLM3-3B", "--lora", "8"),
        ("Qwen3-8B", "--engine", "formula"),
        ("Mixtral-8x7B", "--engine", "formula", "--checkpointing"),
        ("DeepSeek-V3", "--checkpointing"),
        ("gpt-oss-20b", "--serve"),
        ("Llama-3.2-1B", "--seq", "904"),
        ("Llama-3-8B", "--lora", "16"),
    ],
)
@pytest.mark.usefixtures("no_torch")
def test_the_first_screen_has_22_lines_of_80_columns(cli: Cli, words: tuple[str, ...]) -> None:
    lines = cli("fit", *words, "--gpu", "RTX 4090").out.splitlines()
    assert len(lines) <= 22
    assert max(map(len, lines)) <= 80
