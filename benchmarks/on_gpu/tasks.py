"""Tasks and edits that no rule of allocsim was read from, to be predicted before they are run."""

from __future__ import annotations

from typing import Any

from benchmarks.edits.__main__ import PROGRAMS, edits_of
from benchmarks.recent import Case

__all__ = ["LIMITS", "TASKS", "edit_name", "edited_programs"]

_CARD = "H100"
_CKPT: dict[str, Any] = {"checkpointing": True}
_LORA: dict[str, Any] = {"lora": 16}
_FUSED: dict[str, Any] = {"optimizer": "adamw-fused"}


def _serving(id_: str, model: str, layers: int = 0, **options: Any) -> Case:
    """Return a task that answers two batches of prompts with `transformers`."""
    return Case(id_, model, _CARD, {"is_training": False, "decode": 8, **options}, layers)


def _training(id_: str, model: str, layers: int = 0, **options: Any) -> Case:
    """Return a task that trains for three steps."""
    return Case(id_, model, _CARD, {"steps": 3, **options}, layers)


TASKS = (
    _training("t01", "Qwen3-0.6B", batch=2, seq=1024),
    _training("t02", "Qwen3-1.7B", seq=2048, **_LORA, **_CKPT),
    _training("t03", "Qwen3-4B", seq=1024, lora=32),
    _training("t04", "Llama-3.2-1B", batch=4, seq=2048, **_FUSED),
    _training("t05", "Llama-3.2-3B", seq=2048, optimizer="adafactor"),
    _training("t06", "SmolLM3-3B", seq=2048, **_CKPT, **_FUSED),
    _training("t07", "Gemma-3-1B", seq=512, dtype="autocast-bf16"),
    _training("t08", "Gemma-3-1B", seq=2048, attention="eager", **_LORA, **_CKPT),
    _training("t09", "Phi-4-mini", seq=1024, **_LORA),
    _training("t10", "OLMo-2-7B", 8, seq=2048),
    _training("t11", "Falcon3-1B", seq=1024, dtype="fp32", optimizer="momentum"),
    _training("t12", "Mistral-Small-24B", 8, seq=4096, **_LORA),
    _training("t13", "gpt-oss-20b", 4, seq=512, optimizer="sgd", attention="eager"),
    _training("t14", "Qwen3-30B-A3B", 4, seq=1024),
    _training("t15", "gpt2", batch=8, seq=1024, dtype="autocast-bf16"),
    _training("t16", "gpt2-medium", batch=4, seq=1024, dtype="fp32", **_CKPT),
    _training("t17", "Qwen2.5-7B", batch=2, seq=4096, **_LORA, **_CKPT),
    _training("t18", "Llama-3-8B", seq=1024, optimizer="sgd", **_CKPT),
    _training("t19", "Mistral-7B-v0.1", seq=2048, **_LORA),
    _training("t20", "BERT-base", batch=32, seq=512, **_FUSED),
    _training("t21", "ViT-B/16", batch=64, dtype="fp32"),
    _training("t22", "ViT-L/16", batch=32, dtype="autocast-bf16"),
    _training("t23", "ResNet-50", batch=128, dtype="autocast-bf16", optimizer="momentum"),
    _training("t24", "ResNet-50", batch=32, dtype="fp32", optimizer="sgd", channels_last=True),
    _training("t25", "Llama-3.2-1B", batch=2, seq=1024, accumulate=4),
    _training("t26", "Llama-3.2-1B", batch=2, seq=2048, checkpoint_layers=8, checkpointing=True),
    _training("t27", "Qwen2.5-0.5B", batch=4, lengths=(300, 1100, 700, 900) * 3),
    _training("t28", "TinyLlama-1.1B", batch=2, seq=2048, dtype="autocast-fp16"),
    _training("t29", "SmolLM2-135M", batch=16, seq=1024, optimizer="adamw-foreach-off"),
    _serving("s01", "Llama-3-8B", batch=4, prompt=2048),
    _serving("s02", "Qwen2.5-7B", batch=8, prompt=1024),
    _serving("s03", "Qwen3-4B", batch=2, prompt=8192),
    _serving("s04", "Mistral-7B-v0.1", prompt=8192),
    _serving("s05", "Gemma-2-2B", batch=4, prompt=1000),
    _serving("s06", "gpt2", batch=16, prompt=512, dtype="fp32"),
    _serving("s07", "Phi-3-mini", prompt=3000, dtype="fp16"),
    _serving("s08", "Mixtral-8x7B", 4, batch=2, prompt=777),
    _serving("s09", "GLM-4-9B-0414", batch=2, prompt=300),
    _serving("s10", "Qwen2.5-0.5B", batch=8, prompt=2048, attention="eager"),
)
"""Runs of `allocsim fit`, three steps or two requests each."""


_ANSWERS: dict[str, Any] = {"is_training": False, "prompt": 4096, "decode": 4, "requests": 1}


def _limit(id_: str, largest: int, model: str, **options: Any) -> tuple[Case, Case]:
    """Return the runs with the largest batch that fits, by prediction, and with one more."""
    given: dict[str, Any] = {"steps": 2, **options}
    return (
        Case(f"{id_}-{largest}", model, _CARD, {**given, "batch": largest}),
        Case(f"{id_}-{largest + 1}", model, _CARD, {**given, "batch": largest + 1}),
    )


LIMITS = (
    *_limit("gpt2", 42, "gpt2", seq=1024, dtype="fp32"),
    *_limit("llama", 10, "Llama-3.2-1B", seq=2048, **_FUSED),
    *_limit("qwen-lora", 17, "Qwen3-4B", seq=2048, **_LORA, **_CKPT),
    *_limit("qwen-serving", 77, "Qwen2.5-7B", **_ANSWERS),
    *_limit("vit", 444, "ViT-L/16", dtype="autocast-bf16", **_FUSED),
)
"""Pairs of runs: the largest batch that fits an H100 by prediction, and one more."""


def edited_programs() -> list[tuple[str, str]]:
    """Return each program of `benchmarks.edits` with "" and with each of its edits."""
    return [(program, edit) for program in PROGRAMS for edit in ("", *edits_of(program))]


def edit_name(program: str, edit: str) -> str:
    """Return the name of the recording of a program with an edit, "" for none."""
    return "-".join(filter(None, (program, *edit.replace("..", "-").split())))
