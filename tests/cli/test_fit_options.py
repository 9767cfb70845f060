"""Every option of `fit` has an effect on each way of answering, or is refused."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from allocsim.cli import build_parser
from allocsim.cli.fit_options import EFFECTS, ENGINES_OF, Way, way_of
from tests.cli.conftest import Done

Cli = Callable[..., Done]
GPT2, ON = ("fit", "gpt2"), ("--gpu", "RTX 4090")
SERVE = ("--server",)

BASES: dict[Way, tuple[str, ...]] = {
    Way.LIST: (*GPT2, "--list-models"),
    Way.PAGE: (*GPT2, "--html", "page.html"),
    Way.SHOW: (*GPT2, "--show-program"),
    Way.SERVER: (*GPT2, *ON, *SERVE, "vllm"),
    Way.TRANSFORMERS: (*GPT2, *ON, *SERVE, "transformers"),
    Way.ENGINE: (*GPT2, *ON, *SERVE, "vllm", "--engine", "program"),
    Way.GGML: (*GPT2, *ON, *SERVE, "llama.cpp"),
    Way.LAYOUT: (*GPT2, *ON, "--engine", "formula"),
    Way.PLAN: (*GPT2, *ON, "--plan"),
    Way.COMMAND: ("fit", *ON, "--", "python", "train.py"),
    Way.ONE: (*GPT2, *ON),
    Way.FIND: (*GPT2, *ON, "--find", "batch"),
    Way.FRONTIER: (*GPT2, *ON, "--find", "batch,seq"),
    Way.FEWEST: (*GPT2, *ON, "--fsdp", "--find", "gpus"),
}
"""A command line for each way of answering."""

EXAMPLES: dict[str, tuple[str, ...]] = {
    "host_spill": ("--host-spill", "2GiB"),
    "train": ("--train",),
    "serve": ("--serve",),
    "dtype": ("--dtype", "fp32"),
    "seq": ("--seq", "64"),
    "optimizer": ("--optimizer", "sgd"),
    "accumulate": ("--accumulate", "2"),
    "attention": ("--attention", "eager"),
    "batch": ("--batch", "2"),
    "checkpointing": ("--checkpointing",),
    "lora": ("--lora", "8"),
    "compiles": ("--compile",),
    "steps": ("--steps", "3"),
    "start": ("--start", "made"),
    "image": ("--image", "64"),
    "lengths": ("--lengths", "uniform:8:64"),
    "lora_targets": ("--lora-targets", "c_attn"),
    "quant": ("--quant", "nf4"),
    "reference": ("--reference", "copy"),
    "whole_softmax": ("--whole-softmax",),
    "offload": ("--offload",),
    "checkpoint_layers": ("--checkpoint-layers", "3"),
    "channels_last": ("--channels-last",),
    "parallel": ("--fsdp",),
    "ranks": ("--ranks", "1"),
    "rank": ("--rank", "0"),
    "prompt": ("--prompt", "64"),
    "decode": ("--decode", "8"),
    "requests": ("--requests", "1"),
    "server": ("--server", "vllm"),
    "weights": ("--weights", "fp32"),
    "kv_cache_type": ("--kv-cache-type", "fp32"),
    "log": ("--log", "start.log"),
    "gpu_layers": ("--gpu-layers", "0"),
    "server_args": ("--server-args", "--max-model-len 512"),
    "find": ("--find", "batch"),
    "others": ("--with", "seq=64"),
    "multiple_of": ("--multiple-of", "1"),
    "conf": ("--conf", ""),
    "torch": ("--torch", "2.11"),
    "config": ("--config", "trainer.json"),
    "transformers": ("--transformers", "5.23"),
    "python": ("--python", "python3"),
    "no_values": ("--no-values",),
    "out": ("-o", "out.pickle"),
    "html": ("--html", "page.html"),
    "show_program": ("--show-program",),
    "list_models": ("--list-models",),
    "list_gpus": ("--list-gpus",),
    "json": ("--json",),
    "tensor_parallel": ("--tensor-parallel", "2"),
    "pipeline_parallel": ("--pipeline-parallel", "2"),
    "data_parallel": ("--data-parallel", "2"),
    "expert_parallel": ("--expert-parallel", "1"),
    "zero": ("--zero", "0"),
    "recompute": ("--recompute", "full"),
    "context_parallel": ("--context-parallel", "2"),
    "virtual_stages": ("--virtual-stages", "1"),
    "no_sequence_parallel": ("--no-sequence-parallel",),
    "server_version": ("--server-version", "0.33"),
    "offline": ("--offline",),
    "verbose": ("--verbose",),
    "grad_dtype": ("--grad-dtype", "fp32"),
    "kernels": ("--kernels", "eager"),
    "parameters": ("--parameters", "1B"),
    "plan": ("--plan",),
    "cards": ("--gpus", "8"),
}
"""Each option with a value, the default one where there is a choice."""
ALWAYS = ("words", "gpus", "device_memory", "engine")


def with_option(way: Way, words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command line of a way of answering, with the option `words` added."""
    at = 3 if way is Way.COMMAND else len(BASES[way])
    return (*BASES[way][:at], *words, *BASES[way][at:])


def parsed(words: tuple[str, ...]) -> argparse.Namespace:
    return build_parser("fit").parse_args(list(words))


def test_every_option_of_the_parser_has_its_row_and_its_example() -> None:
    names = set(vars(parsed(GPT2))) - {"run", "command", "has_separator", "needs_numpy"}
    assert set(EFFECTS) == names
    assert set(EXAMPLES) == names - set(ALWAYS)
    assert set(ENGINES_OF) == set(Way)


@pytest.mark.parametrize("way", BASES)
def test_the_command_line_of_each_way_is_answered_so(way: Way) -> None:
    assert way_of(parsed(BASES[way])) is way


PAIRS = [(way, name) for way in BASES for name in EXAMPLES if way is not Way.LIST]


@pytest.mark.parametrize(("way", "name"), PAIRS)
def test_an_option_without_effect_is_refused_by_name(cli: Cli, way: Way, name: str) -> None:
    words = with_option(way, EXAMPLES[name])
    answered_by = way_of(parsed(words))
    if answered_by is not way or way in EFFECTS[name]:
        assert answered_by in EFFECTS[name] or way in EFFECTS[name] or answered_by is Way.LAYOUT
        return
    done = cli(*words)
    option = EXAMPLES[name][0]
    assert (done.code, done.out) == (2, "")
    assert (f"-{name}" if option == "-o" else option) in done.err


@pytest.mark.parametrize("way", [way for way in BASES if way is not Way.LIST])
@pytest.mark.parametrize("engine", ["program", "laws", "formula"])
def test_an_engine_that_does_not_answer_is_refused(cli: Cli, way: Way, engine: str) -> None:
    words = with_option(way, ("--engine", engine))
    way = way_of(parsed(words))
    if engine in ENGINES_OF[way]:
        return
    done = cli(*words)
    assert done.code == 2
    assert f"--engine {engine}" in done.err


LLAMA = ("fit", "Llama-3.2-1B", *ON)
BY_LAW = ("fit", "gpt2", *ON, "--engine", "laws", "--seq", "512")
MOE = ("fit", "Mixtral-8x7B", *ON, "--engine", "formula", "--data-parallel", "8")
CHANGED: list[tuple[tuple[str, ...], tuple[str, ...]]] = [
    *(
        ((*LLAMA, *SERVE, "vllm"), option)
        for option in (
            *(("--batch", "2"), ("--prompt", "64"), ("--decode", "8"), ("--weights", "fp8")),
            *(("--kv-cache-type", "fp8"), ("--tensor-parallel", "2")),
        )
    ),
    *(
        ((*LLAMA, *SERVE, "transformers", "--prompt", "64", "--decode", "2"), option)
        for option in (("--batch", "2"), ("--weights", "fp8"))
    ),
    *(
        ((*LLAMA, *SERVE, "llama.cpp"), option)
        for option in (
            *(("--batch", "2"), ("--prompt", "4000"), ("--decode", "4000"), ("--weights", "q8_0")),
            *(("--kv-cache-type", "q8_0"), ("--gpu-layers", "4")),
        )
    ),
    *(
        ((*LLAMA, "--engine", "formula"), option)
        for option in (
            *(("--dtype", "fp32"), ("--seq", "64"), ("--optimizer", "sgd"), ("--batch", "2")),
            *(("--attention", "eager"), ("--checkpointing",), ("--tensor-parallel", "2")),
            *(("--pipeline-parallel", "2"), ("--data-parallel", "2"), ("--context-parallel", "2")),
            *(("--recompute", "full"), ("--grad-dtype", "fp32"), ("--kernels", "eager")),
        )
    ),
    ((*LLAMA, "--data-parallel", "8"), ("--zero", "3")),
    ((*LLAMA, "--tensor-parallel", "8"), ("--no-sequence-parallel",)),
    ((*LLAMA, "--pipeline-parallel", "4", "--accumulate", "8"), ("--virtual-stages", "2")),
    ((*LLAMA, "--pipeline-parallel", "4"), ("--accumulate", "1")),
    (MOE, ("--expert-parallel", "8")),
    *(
        (BY_LAW, option)
        for option in (
            *(("--dtype", "fp32"), ("--optimizer", "sgd"), ("--batch", "2"), ("--lora", "8")),
            *(("--checkpointing",), ("--conf", "expandable_segments:True"), ("--serve",)),
        )
    ),
]


@pytest.mark.parametrize(("words", "option"), CHANGED)
def test_an_option_that_is_taken_changes_the_answer(
    cli: Cli, words: tuple[str, ...], option: tuple[str, ...]
) -> None:
    if "--serve" in option:
        words = tuple(word for word in words if word not in ("--seq", "512"))
    plain, changed = (cli(*line, "--json") for line in (words, (*words, *option)))
    assert {plain.code, changed.code} <= {0, 3}
    answers = [json.loads(done.out) for done in (plain, changed)]
    for answer in answers:
        answer.pop("seconds", None)
    assert answers[0] != answers[1]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((*SERVE, "vllm", "--rank", "0"), "--rank has no effect with --server"),
        ((*SERVE, "vllm", "--zero", "0"), "--zero has no effect with --server"),
        ((*SERVE, "vllm", "--requests", "2"), "--requests has an effect with transformers"),
        (
            (*SERVE, "ollama", "--tensor-parallel", "2"),
            "--tensor-parallel has an effect with vllm, sglang",
        ),
        ((*SERVE, "vllm", "--tensor-parallel", "5"), "5 cards do not divide 12 attention heads"),
        (
            ("--engine", "formula", "--reference", "copy"),
            "--reference has no effect here: a plan for many cards counts no reference",
        ),
        (("--plan", "--whole-softmax"), "a plan for many cards counts no reference"),
        (("--engine", "laws", "--python", "python3"), "--python applies to a program that runs"),
        ((*SERVE, "vllm", "--server-args", "-q"), "-q of vllm needs a value"),
        ((*SERVE, "vllm", "--engine", "program", "--batch", "2"), "use --server-args"),
        (
            (*SERVE, "vllm", "--engine", "program", "--gpu", "L4"),
            "an engine is started on one kind of card; expected one --gpu",
        ),
        (
            (*SERVE, "vllm", "--engine", "program", "--server-args", "'"),
            "--server-args ': No closing quotation",
        ),
    ],
)
def test_the_sentence_says_what_the_option_is_for(
    cli: Cli, words: tuple[str, ...], sentence: str
) -> None:
    done = cli(*GPT2, *ON, *words)
    assert (done.code, done.out) == (2, "")
    assert sentence in done.err


def test_a_log_of_one_card_tells_nothing_of_several(cli: Cli, tmp_path: Path) -> None:
    log = tmp_path / "start.log"
    log.write_text("INFO 01-01 model_runner.py: Loading model weights took 0.24 GB\n")
    done = cli(*GPT2, *ON, *SERVE, "vllm", "--tensor-parallel", "2", "--log", log)
    assert done.code == 2
    assert "a log describes one card" in done.err


def test_arguments_of_a_server_may_begin_with_a_dash() -> None:
    words = (*GPT2, *SERVE, "vllm", "--server-args", "--enforce-eager", "--json")
    assert parsed(words).server_args == "--enforce-eager"
    assert parsed(words).json
