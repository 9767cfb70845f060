"""Compare starts of vLLM on a card with the starts over a phantom GPU that predicted them.

    python -m benchmarks.on_gpu.engines prepare FOLDER               models and list of starts
    python -m benchmarks.on_gpu.engines predict FOLDER --python PATH [--only NAME ...]
    python -m benchmarks.on_gpu.engines read CARD PREDICTED          logs to traces/h100
    python -m benchmarks.on_gpu.engines docs

The card's machine needs vLLM and this script, with VLLM_LOGGING_LEVEL=DEBUG:

    python benchmarks/on_gpu/inside/engines.py FOLDER/starts.json OUT

PATH needs the same release of vLLM.  Both sides write NAME.txt, the engine's log.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

from allocsim.fitting import Configured, model_of, serving_program, start
from allocsim.phantom import find_gpu
from benchmarks.real_gpu.tables import table
from tests.reference import between_marks

ROOT = Path(__file__).parents[2]
CARD = "H100"
_KEPT = ROOT / "traces" / "h100" / "engines.json"
_PAGE = ROOT / "docs" / "evidence" / "serving.md"
_LENGTH = "--max-model-len 8192"
_SEQUENCES = f"{_LENGTH} --max-num-seqs 64"
_EXPERTS = f"{_SEQUENCES} --moe-backend triton"
_HYBRID = f"{_EXPERTS} --gdn-prefill-backend triton --gpu-memory-utilization 0.45"
_EIGHT_BITS = f"{_SEQUENCES} --quantization fp8 --kv-cache-dtype fp8"
_REQUESTS = (8, 1000, 32)
_CACHES = {
    "VLLM_CACHE_ROOT": "vllm",
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
}


@dataclass(frozen=True)
class Engine:
    """Start of vLLM on the card.

    layers: number of layers to keep of the model; 0 for all.
    after: name of an earlier start, whose compiled kernels are used; "" for a first start.
    """

    name: str
    model: str
    options: str = _SEQUENCES
    layers: int = 0
    after: str = ""


ENGINES = (
    Engine("qwen3-8b", "Qwen3-8B", _LENGTH),
    Engine("qwen3-30b", "Qwen3-30B-A3B", _EXPERTS),
    Engine("qwen3-next", "Qwen3-Next-80B-A3B", _HYBRID, 8),
    Engine("qwen3-next-later", "Qwen3-Next-80B-A3B", _HYBRID, 8, "qwen3-next"),
    Engine("lora", "Llama-3.1-8B", f"{_SEQUENCES} --enable-lora"),
    Engine("gemma-3-1b", "Gemma-3-1B", "--max-model-len 32768 --max-num-seqs 128"),
    Engine("fp8", "Llama-3.1-8B", _EIGHT_BITS),
    Engine("eager", "Llama-3.1-8B", f"{_LENGTH} --enforce-eager"),
)


def describe(engine: Engine, folder: Path) -> Path:
    """Write the model's config.json to a folder of its name in `folder`, and return that folder."""
    model = model_of(engine.model)
    assert isinstance(model, Configured)
    config = {"torch_dtype": "bfloat16", **model.config}
    if engine.layers:
        for name in ("layer_types", "mlp_only_layers"):
            if config.get(name):
                config[name] = config[name][: engine.layers]
        config["num_hidden_layers"] = engine.layers
    place = folder / engine.name
    place.mkdir(parents=True, exist_ok=True)
    (place / "config.json").write_text(json.dumps(config))
    return place


def prepare(folder: Path, limit: int = 150) -> None:
    """Write the models and the list of starts for the card; each start may take `limit` s."""
    starts = [
        {
            "name": each.name,
            "folder": str(describe(each, folder)),
            "requests": ",".join(map(str, _REQUESTS)),
            "arguments": each.options.split(),
            "caches": str(folder / "caches" / (each.after or each.name)),
            "limit": limit,
        }
        for each in ENGINES
    ]
    (folder / "starts.json").write_text(json.dumps(starts, indent=1))


def predict(out: Path, python: str, names: Sequence[str]) -> None:
    """Start engines over the phantom GPU, and write their logs."""
    for each in ENGINES:
        if names and each.name not in names:
            continue
        logs: list[str] = []
        caches = out / "caches" / (each.after or each.name)
        if not each.after:
            shutil.rmtree(caches, ignore_errors=True)
        kept = {variable: f"{caches}/{name}" for variable, name in _CACHES.items()}
        read = serving_program.__dict__["figures_in"]

        def log_of(log: str, logs: list[str] = logs, read: Any = read) -> Any:
            logs.append(log)
            return read(log)

        with (
            mock.patch.object(serving_program, "figures_in", log_of),
            mock.patch.dict(os.environ, {**kept, "VLLM_LOGGING_LEVEL": "DEBUG"}),
            mock.patch("allocsim.phantom.recorder._settings_of_engines", lambda _: {}),
        ):
            found = start(
                str(describe(each, out / "models")), "vllm", find_gpu(CARD),
                arguments=each.options.split(), python=python, requests=_REQUESTS,
            )  # fmt: skip
        (out / f"{each.name}.txt").write_text("\n".join(logs))
        print(each.name, found.phase.name, found.failure, f"{found.seconds:.0f} s", flush=True)


_PRINTED = {
    "weights": r"Model loading took ([\d.]+) GiB",
    "activations": r"torch peak memory increase: ([\d.]+)GiB",
    "driver": r"non-torch forward increase memory: ([\d.]+)GiB",
    "estimate": r"Estimated CUDA graph memory: ([\d.]+) GiB",
    "graphs": r"Graph capturing finished in \d+ secs, took ([\d.]+) GiB",
    "cache": r"Available KV cache memory: ([\d.]+) GiB",
    "tokens": r"GPU KV cache size: ([\d,]+) tokens",
}
"""Pattern of each number in vLLM's log, in GiB or tokens."""


def printed_in(log: str) -> dict[str, float]:
    """Return the numbers that an engine printed, the last of each."""
    found = {name: re.findall(pattern, log) for name, pattern in _PRINTED.items()}
    return {name: float(each[-1].replace(",", "")) for name, each in found.items() if each}


def read(card: Path, predicted: Path) -> None:
    """Keep the numbers in the logs of both sides, for starts with a log on the card."""
    rows = {
        each.name: {
            side: printed_in((place / f"{each.name}.txt").read_text(errors="replace"))
            for side, place in (("card", card), ("predicted", predicted))
        }
        for each in ENGINES
        if (card / f"{each.name}.txt").exists()
    }
    _KEPT.write_text(json.dumps(rows, indent=1) + "\n")


def lines() -> Iterator[str]:
    """Yield the table of what the card printed, with the prediction in brackets if it differs."""
    rows = json.loads(_KEPT.read_text())
    errors = []
    cells = []
    for each in ENGINES:
        if each.name not in rows:
            continue
        card, predicted = (rows[each.name][side] for side in ("card", "predicted"))
        error = predicted["tokens"] / card["tokens"] - 1
        errors.append(error)
        model = each.model + f", {each.layers} layers" * bool(each.layers)
        cells.append(
            [
                model + ", later start" * bool(each.after),
                f"`{each.options}`",
                *(
                    _both(card.get(name), predicted.get(name))
                    for name in _PRINTED
                    if name != "tokens"
                ),
                f"{card['tokens']:,.0f}",
                f"{error:+.2%}",
            ]
        )
    names = ("weights", "activations", "driver", "graphs, estimate", "graphs, taken", "KV cache")
    yield from table(["model", "options", *names, "tokens", "error"], cells)
    yield ""
    yield (
        f"Tokens: median {median(errors):+.2%}, largest {max(errors, key=abs):+.2%}, "
        f"{sum(abs(each) < 0.02 for each in errors)} of {len(errors)} within 2%."
    )


def _both(card: float | None, predicted: float | None) -> str:
    if card is None:
        return ""
    return f"{card:.2f}" + f" ({predicted:.2f})" * (predicted != card and predicted is not None)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.on_gpu.engines", description=__doc__)
    parser.add_argument("what", choices=("prepare", "predict", "read", "docs"))
    parser.add_argument("places", nargs="*", type=Path)
    parser.add_argument("--python", default="python3")
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME")
    given = parser.parse_args(arguments)
    if given.what == "prepare":
        prepare(given.places[0].resolve())
    elif given.what == "predict":
        predict(given.places[0].resolve(), given.python, given.only)
    elif given.what == "read":
        read(*given.places)
    else:
        command = "python -m benchmarks.on_gpu.engines docs"
        text = between_marks(_PAGE.read_text(), "on a card", command, "\n".join(lines()))
        _PAGE.write_text(text)


if __name__ == "__main__":
    main()
