"""Compare the memory that vLLM printed at public starts with starts on a phantom GPU.

    python -m benchmarks.serving.started --python PATH ROW ...
    python -m benchmarks.serving.started --docs

Rule: a row of `logs.csv` is started with the options of its log, on its card.  The release of the
installed vLLM can differ from that of the log, and the table names both.  A start takes minutes, so
results are kept in results/serving_started.json, and --docs writes them to
docs/evidence/serving.md.
"""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from allocsim.errors import AllocsimError
from allocsim.fitting import start
from allocsim.fitting.formulas import version_of
from allocsim.phantom import Gpu
from allocsim.phantom.wheel import cache_root
from allocsim.units import GIB
from benchmarks.serving.__main__ import HERE, Row, gpu_of, rows
from tests.reference import between_marks

_RESULTS = HERE.parent / "results" / "serving_started.json"
_MODELS = HERE / "models.json"
_PAGE = HERE.parents[1] / "docs" / "evidence" / "serving.md"
_COMMAND = "python -m benchmarks.serving.started --docs"

_FIGURES = {
    "weights": ("weights_gib", "weights_bytes"),
    "cache": ("cache_gib", "kv_cache_bytes"),
    "tokens": ("tokens", "kv_cache_tokens"),
    "graphs": ("graphs_gib", "graphs_bytes"),
    "estimate": ("estimate_gib", "graphs_estimate_bytes"),
}
"""Column of logs.csv and name of the printed number of each figure."""


_LORA = "--enable-lora --disable-custom-all-reduce"
_MORE = {
    **{f"V{number:03}": "--attention-backend FLASHINFER" for number in range(74, 104)},
    "V039": "--enable-prefix-caching",
    "V044": "--no-enable-prefix-caching",
    "V104": "--no-enable-prefix-caching",
    "V105": "--no-enable-prefix-caching",
    "V052": "--enable-lora",
    "V055": f"{_LORA} --no-enable-prefix-caching",
    "V056": f"{_LORA} --no-enable-prefix-caching --no-enable-chunked-prefill "
    "--attention-backend TRITON_ATTN",
    "V057": _LORA,
}
"""Options of a log that logs.csv does not have, because formulas do not use them.  The logs do not
print the rank of adapters; it is the default."""


_TUNED = frozenset(("V083", "V086", "V092", "V093", "V095", "V100", "V101", "V103"))
"""Rows of V074 to V103 whose engine was up within three minutes; each other row took longer.

Triton launches every variant of a kernel at the first start, and keeps the fastest for later ones.
The driver keeps the local memory of the largest, 11,912 bytes for each thread, so rows of a first
start have 2.2 GiB less.
"""


def forget_tuning(row: Row) -> None:
    """Remove the kept choices of kernels if the row's engine was started for the first time."""
    if row["row"] not in _TUNED:
        for file in (cache_root() / "engines").glob("*/triton/*/*.autotune.json"):
            file.unlink()


_BEFORE = 0.03
"""GiB that the engine takes before it measures the free memory: cuBLAS workspaces."""


def card_of(row: Row) -> Gpu:
    """Return the card of a row, whose free memory is that of the log if it printed it."""
    gpu = gpu_of(row)
    if row["free"] and row["total"]:
        free = round((float(row["free"]) + _BEFORE) * GIB)
        gpu = replace(gpu, context_memory=gpu.memory - free)
    return gpu


def arguments_of(row: Row) -> list[str]:
    """Return the options of a row's log; a card without bfloat16 needs float16."""
    words = shlex.split(f"{row['options']} {_MORE.get(row['row'], '')}")
    if row["weights"] == "fp8":  # a model of 16 bits, converted at its load
        words += ["--quantization", "fp8"]
    return [*words, "--dtype", "half"] if card_of(row).capability < (8, 0) else words


def described_in(folder: Path, name: str) -> str:
    """Write the configuration of a model that is no preset to `folder`; return what to start.

    Text has no tokens but those that stand for images, so a tokenizer needs no others.
    """
    known = json.loads(_MODELS.read_text())
    if name not in known:
        return name
    model = known[name]
    while "like" in model:
        base = known[model.pop("like")]
        model = base | model | {"config": base["config"] | model["config"]}
    tokens = {"<unk>": 0, "<eos>": 1, **model.get("tokens", {})}
    special = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    files = {
        "config.json": _for_each_layer(model["config"]),
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast",
                                  "unk_token": "<unk>", "eos_token": "<eos>"},
        "tokenizer.json": {
            "version": "1.0",
            "added_tokens": [{"id": number, "content": text, "special": True, **special}
                             for text, number in tokens.items()],
            "model": {"type": "WordLevel", "vocab": tokens, "unk_token": "<unk>"},
        },
        **model.get("files", {}),
    }  # fmt: skip
    for file, content in files.items():
        (folder / file).write_text(json.dumps(content))
    return str(folder)


def _for_each_layer(value: Any) -> Any:
    # A module's name with "#" is that of a module in each layer.
    if isinstance(value, dict):
        return {key: _for_each_layer(each) for key, each in value.items()}
    if isinstance(value, list):
        counts = [range(_LAYERS if isinstance(each, str) and "#" in each else 1) for each in value]
        return [
            each.replace("#", str(number)) if isinstance(each, str) else each
            for each, numbers in zip(value, counts, strict=True)
            for number in numbers
        ]
    return value


_LAYERS = 64
"""Number of layers of the deepest model in models.json."""


def started(row: Row, python: str) -> dict[str, Any]:
    """Start the engine of a row, and return the figures by name, or the error."""
    forget_tuning(row)
    try:
        with TemporaryDirectory() as folder:
            model = described_in(Path(folder), row["model"])
            found = start(model, "vllm", card_of(row), arguments=_single(row), python=python,
                          cards=_cards(row))  # fmt: skip
    except AllocsimError as error:
        return {"row": row["row"], "error": str(error)}
    figures = {
        name: found.sizes[key] / (1 if name == "tokens" else GIB)
        for name, (_, key) in _FIGURES.items()
        if key in found.sizes
    }
    return {
        "row": row["row"],
        "engine": found.engine,
        "torch": found.torch_version,
        "phase": found.phase.name.lower(),
        "seconds": round(found.seconds),
        "figures": figures,
        "driver": dict(found.driver),
        "local_bytes": found.local_bytes,
        "tuning_bytes": found.tuning_bytes,
        "hollow": found.hollow,
        **({} if found.fits else {"error": found.failure}),
    }


_SPLIT = "--tensor-parallel-size"


def _cards(row: Row) -> int:
    words = arguments_of(row)
    return int(words[words.index(_SPLIT) + 1]) if _SPLIT in words else 1


def _single(row: Row) -> list[str]:
    words = arguments_of(row)
    at = words.index(_SPLIT) if _SPLIT in words else len(words)
    return words[:at] + words[at + 2 :]


def kept_in(place: Path) -> list[dict[str, Any]]:
    """Return the results in a file, in the order of the rows."""
    found: list[dict[str, Any]] = json.loads(place.read_text()) if place.exists() else []
    return found


def keep_in(place: Path, result: dict[str, Any]) -> None:
    """Keep a result in a file instead of an earlier one of the same row and engine."""
    key = (result["row"], result.get("engine"))
    others = [each for each in kept_in(place) if (each["row"], each.get("engine")) != key]
    order = sorted([*others, result], key=lambda each: (each["row"], each.get("engine", "")))
    place.write_text("[\n" + ",\n".join(json.dumps(each) for each in order) + "\n]\n")


def table(results: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the table of all results, with signed errors, and the failures of starts."""
    by_name = {row["row"]: row for row in rows()}
    names = [name for name in _FIGURES if name != "tokens"]
    heads = ["row", "model", "card", "log", "started"]
    heads += ["tokens, printed", "tokens, started", "error", *(f"{name}, error" for name in names)]
    yield f"| {' | '.join(heads)} |"
    yield "|---|---|---|---|---|" + "---:|" * (len(names) + 3)
    for each in results:
        row = by_name[each["row"]]
        found = {name: figures for name, *figures in figures_of(row, each)}
        errors = {name: f"{is_ / was - 1:+.2%}" for name, (was, is_) in found.items() if was}
        tokens = [f"{number:,.0f}" for number in found.get("tokens", ())] or ["", ""]
        engine = each.get("engine", "").removeprefix("vLLM ")
        cells = [row["row"], row["model"], row["card"], row["release"], engine, *tokens]
        cells += [errors.get(name, "") for name in ("tokens", *names)]
        yield f"| {' | '.join(cells)} |"
    yield ""
    for each in results:
        if "error" in each:
            yield f"- {each['row']}: {each['error'].partition('. Tried')[0]}"


def figures_of(row: Row, result: dict[str, Any]) -> Iterator[tuple[str, float, float]]:
    """Yield name, printed number and number of the start, of each figure that both have."""
    for name, (column, _) in _FIGURES.items():
        if row[column] and name in result.get("figures", {}):
            yield name, float(row[column]), result["figures"][name]


def summary(results: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield a line for each figure with the errors of all results."""
    by_name = {row["row"]: row for row in rows()}
    for name in _FIGURES:
        errors = [
            found / printed - 1
            for each in results
            for figure, printed, found in figures_of(by_name[each["row"]], each)
            if figure == name and printed
        ]
        if errors:
            yield (
                f"- {name}: {len(errors)} figures, median {median(errors):+.2%} signed and "
                f"{median(map(abs, errors)):.2%} unsigned, largest {max(errors, key=abs):+.2%}, "
                f"{sum(abs(error) < 0.02 for error in errors)} within 2%"
            )


def left_out(results: Sequence[dict[str, Any]]) -> str:
    """Return the rows of vLLM on a named card without a start, by release."""
    there = {each["row"] for each in results}
    by_release: dict[str, list[str]] = {}
    for row in rows():
        if row["server"] == "vllm" and row["gpu"] and row["row"] not in there:
            by_release.setdefault(row["release"].partition("rc")[0], []).append(row["row"])
    of_releases = sorted(by_release.items(), key=lambda item: version_of(item[0]))
    listed = "; ".join(f"{release}: {' '.join(names)}" for release, names in of_releases)
    return f"Not started, by release: {listed}."


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.serving.started", description=__doc__)
    parser.add_argument("rows", metavar="ROW", nargs="*")
    parser.add_argument("--python", metavar="PATH")
    parser.add_argument("--docs", action="store_true")
    given = parser.parse_args(arguments)
    for row in rows():
        if row["row"] in given.rows:
            result = started(row, given.python)
            keep_in(_RESULTS, result)
            print(json.dumps(result), flush=True)
    found = kept_in(_RESULTS)
    text = "\n".join([*table(found), "", *summary(found), "", left_out(found)])
    if given.docs:
        _PAGE.write_text(between_marks(_PAGE.read_text(), "started", _COMMAND, text))
    elif not given.rows:
        print(text)


if __name__ == "__main__":
    main()
