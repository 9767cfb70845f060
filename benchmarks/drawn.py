"""Draw tasks at random, run them with real PyTorch, and compare them with their laws.

    python -m benchmarks.drawn --python PATH --seed N [--count N] [--write]
    python -m benchmarks.drawn

Tasks are drawn from the models and options of traces/fit/truth.jsonl, and from those of further
presets that have laws.  --write appends the runs to traces/fit/drawn.jsonl, whose rows are like
those of truth.jsonl.  Without PATH, the rows of that file are compared, which needs no PyTorch.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from allocsim.fitting import program_of
from benchmarks.laws.recorded import counted
from benchmarks.truth import DATA, gpu_of, line_of, task_of, without_cudnn

FILE = DATA / "drawn.jsonl"
_EAGER = "Gemma-2-2B"
_ENCODERS = ("BERT-base",)
_SEEING = ("ViT-B/16", "ViT-L/16", "ViT-B/32")
_MODELS = (
    *("gpt2", "gpt2-medium", "Llama-3.2-1B", "Llama-3-8B", "Qwen2.5-0.5B", "Qwen2.5-1.5B"),
    *("Qwen2.5-7B", "Mixtral-small", "SmolLM2-135M", "TinyLlama-1.1B", "Mistral-7B-v0.1"),
    *("Phi-3-mini", "Qwen3-0.6B", "Qwen3-4B", _EAGER),
)
_LARGE = ("Llama-3-8B", "Qwen2.5-7B", "Mistral-7B-v0.1", "Phi-3-mini", "Qwen3-4B", _EAGER)
_SMALL_POSITIONS = {"gpt2": 1024, "gpt2-medium": 1024, "BERT-base": 512, "TinyLlama-1.1B": 2048}
_CARDS = ("A100 80GB", "A100 80GB", "RTX 4090", "H100")
_DTYPES = ("bf16", "bf16", "autocast-bf16", "autocast-bf16", "fp32")
_OPTIMIZERS = (
    *("adamw", "adamw", "adamw-fused", "adamw-fused", "adamw-foreach-off"),
    *("sgd", "momentum", "adafactor"),
)
_ALL_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_OF_GPT2 = ("c_attn", "c_proj", "c_fc")
_OF_PHI3 = ("o_proj", "qkv_proj", "gate_up_proj", "down_proj")


_CHOSEN: tuple[dict[str, Any], ...] = (
    {"kind": "train", "model": "GLM-4-9B-0414", "dtype": "bf16", "optimizer": "sgd", "batch": 1,
     "seq": 512, "checkpointing": True},
    {"kind": "serve", "model": "GLM-4-9B-0414", "dtype": "bf16", "batch": 2, "prompt": 300,
     "decode": 4},
    {"kind": "train", "model": "Qwen3-0.6B", "dtype": "bf16", "optimizer": "adamw", "batch": 2,
     "seq": 1024, "checkpointing": False},
    {"kind": "serve", "model": "Mistral-7B-v0.1", "dtype": "bf16", "batch": 1, "prompt": 1024,
     "decode": 4},
)  # fmt: skip
"""Tasks of model families whose laws are new; they have the seed 0."""


def drawn(seed: int, count: int) -> Iterator[dict[str, Any]]:
    """Yield `count` tasks in the form of truth.jsonl; a third serve. Seed 0 gives `_CHOSEN`."""
    if not seed:
        for number, row in enumerate(_CHOSEN):
            yield {"id": f"chosen-{number}", **row, "start": "clean", "card": "A100 80GB"}
        return
    chance = random.Random(seed)
    for number in range(count):
        row = _serving(chance) if number % 3 == 2 else _training(chance)
        card = chance.choice(_CARDS)
        start = {"start": chance.choice(("clean", "made"))}
        yield {"id": f"{seed}-{number:03}", **row, **start, "card": card}


def _training(chance: random.Random) -> dict[str, Any]:
    model = chance.choice((*_MODELS, *_ENCODERS, *_SEEING[: chance.randint(0, 2)]))
    row: dict[str, Any] = {
        "kind": "train",
        "model": model,
        "dtype": chance.choice(_DTYPES),
        "optimizer": chance.choice(_OPTIMIZERS),
        "batch": chance.choice((1, 2, 4, 8)),
    }
    if model in _SEEING:
        return row | {"image": 224, "batch": row["batch"] * chance.choice((1, 8, 16))}
    row["seq"] = min(chance.choice((128, 512, 512, 1024, 1024, 2048, 4096)), _most(model))
    row["checkpointing"] = chance.random() < (0.8 if model in _LARGE else 0.4)
    if model not in _ENCODERS and chance.random() < (0.6 if model in _LARGE else 0.15):
        targets = _OF_GPT2 if "gpt2" in model else _OF_PHI3 if "Phi" in model else _ALL_LINEAR
        row |= {"dtype": "bf16", "lora": 16, "lora_targets": list(targets)}
        if model == "Mixtral-small":
            row["lora_targets"] = list(_ALL_LINEAR[:4])
    elif model not in _ENCODERS and chance.random() < 0.1:
        row["attention"] = "eager"
    return row


def _serving(chance: random.Random) -> dict[str, Any]:
    model = chance.choice(_MODELS)
    row: dict[str, Any] = {
        "kind": "serve",
        "model": model,
        "dtype": chance.choice(("bf16", "bf16", "bf16", "fp16", "fp32")),
        "batch": chance.choice((1, 1, 4, 8)),
        "prompt": min(chance.choice((16, 128, 1024, 2048, 3000, 8192)), _most(model) - 64),
        "decode": 16,
    }
    return row | ({"attention": "eager"} if chance.random() < 0.1 else {})


def _most(model: str) -> int:
    return _SMALL_POSITIONS.get(model, 8192 + 64)


def counted_rows(asked: Sequence[Mapping[str, Any]], python: str) -> Iterator[dict[str, Any]]:
    """Run the tasks with real PyTorch, by card, and yield each row with the counted peaks."""
    for card in sorted({row["card"] for row in asked}):
        own = [row for row in asked if row["card"] == card]
        with TemporaryDirectory() as place:
            texts = [without_cudnn(program_of(task_of(row, Path(place)))) for row in own]
            for row, found in zip(own, counted(python, texts, gpu_of(own[0])), strict=True):
                peaks = {f"peak_{name}": found[name] for name in ("allocated", "reserved")}
                yield {**row, **({"oom_in_step": 0} if found["ooms"] else {}), **peaks}


def rows() -> list[dict[str, Any]]:
    """Return the rows of traces/fit/drawn.jsonl."""
    return [json.loads(line) for line in FILE.read_text().splitlines()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--python", help="the Python that has PyTorch")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=48)
    parser.add_argument("--write", action="store_true", help="append the runs to drawn.jsonl")
    given = parser.parse_args()
    if given.python is None:
        found = iter(rows())
    else:
        found = counted_rows(list(drawn(given.seed, given.count)), given.python)
    n = n_exact = 0
    for row in found:
        if given.write:
            with FILE.open("a") as file:
                file.write(json.dumps(row) + "\n")
        line, is_same = line_of(row, None, "laws")
        n, n_exact = n + 1, n_exact + is_same
        print(line, flush=True)
    print(f"{n_exact} of {n} to the byte, reserved and allocated")
    return int(n != n_exact)


if __name__ == "__main__":
    raise SystemExit(main())
