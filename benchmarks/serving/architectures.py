"""Start engines with models of several architectures on a phantom GPU, and replay the recordings.

    python -m benchmarks.serving.architectures --python PATH [--server sglang] [MODEL ...]
    python -m benchmarks.serving.architectures --docs

A row is a model and the release of an engine that is installed at PATH.  A start takes minutes, so
results are kept in results/serving_architectures.json, and --docs writes them to
docs/evidence/serving.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from allocsim.errors import AllocsimError
from allocsim.fitting import start
from allocsim.fitting.formulas import version_of
from allocsim.phantom import find_gpu, starter_of
from allocsim.recording import load
from allocsim.replaying import replay
from allocsim.units import GIB
from benchmarks.serving.__main__ import HERE
from benchmarks.serving.started import keep_in, kept_in
from tests.reference import between_marks

_RESULTS = HERE.parent / "results" / "serving_architectures.json"
_PAGE = HERE.parents[1] / "docs" / "evidence" / "serving.md"

CASES = {
    "vllm": {
        "meta-llama/Llama-3.2-1B": ("H100", 1),
        "Qwen/Qwen2.5-0.5B-Instruct": ("RTX 4090", 1),
        "Qwen/Qwen3-0.6B": ("H100", 1),
        "Qwen/Qwen3-30B-A3B": ("H100", 2),
        "google/gemma-3-1b-it": ("RTX 4090", 1),
        "mistralai/Mistral-Small-24B-Instruct-2501": ("H100", 2),
        "openai/gpt-oss-20b": ("H100", 1),
        "deepseek-ai/DeepSeek-V2-Lite": ("H100", 1),
    },
    "sglang": {
        "meta-llama/Llama-3.2-1B": ("H100", 1),
        "Qwen/Qwen2.5-1.5B-Instruct": ("L40S", 1),
        "Qwen/Qwen3-0.6B": ("H100", 1),
        "Qwen/Qwen3-30B-A3B": ("H100", 2),
        "google/gemma-3-1b-it": ("L40S", 1),
        "mistralai/Mistral-Small-24B-Instruct-2501": ("H100", 2),
        "openai/gpt-oss-20b": ("H100", 1),
        "deepseek-ai/DeepSeek-V2-Lite": ("H100", 1),
    },
}
"""Card and number of cards of each model, by engine."""
_OPTIONS = {
    "vllm": ("--max-model-len", "8192", "--max-num-seqs", "32"),
    "sglang": ("--context-length", "8192", "--cuda-graph-max-bs-decode", "32"),
    "Qwen/Qwen2.5-1.5B-Instruct": (
        *("--mem-fraction-static", "0.85", "--context-length", "32768"),
        *("--chunked-prefill-size", "4096", "--cuda-graph-max-bs-decode", "32"),
    ),
}
"""Options of an engine, or of one model: those of the logs in rows S002 and S003 of logs.csv, where
the last option had another name."""


def started(model: str, python: str, server: str) -> dict[str, Any]:
    """Start a model and replay its recording; return the sizes in GiB, or the error."""
    card, cards = CASES[server][model]
    words = _OPTIONS.get(model, _OPTIONS[server])
    result: dict[str, Any] = {"row": model, "card": card, "cards": cards, "options": list(words)}
    with TemporaryDirectory() as place:
        out = Path(place) / "start.pickle"
        try:
            found = start(model, server, find_gpu(card), arguments=words, python=python,
                          cards=cards, keep=out)  # fmt: skip
        except AllocsimError as error:
            return result | {"engine": _installed(server, python), "error": str(error)}
        result |= {"engine": found.engine, "seconds": round(found.seconds)}
        if not found.fits:
            return result | {"error": found.failure}
        device = replay(load(out)).devices[0]
    sizes = {name: round(size / GIB, 2) for name, size in found.parts()}
    return result | {
        "sizes": sizes,
        "tokens": found.sizes["kv_cache_tokens"],
        "entries": device.entries,
        "is_whole": device.parting is None,
    }


def _installed(server: str, python: str) -> str:
    code = f"from importlib.metadata import version; print(version({server!r}))"
    done = subprocess.run((python, "-c", code), capture_output=True, text=True, check=True)
    return f"{starter_of(server).name} {done.stdout.strip()}"


def _by_engine(result: dict[str, Any]) -> tuple[str, tuple[int, ...], str]:
    name, _, release = result["engine"].partition(" ")
    return name, version_of(release), result["row"].lower()


def table() -> Iterator[str]:
    """Yield the table of all results, by engine and release."""
    yield "| engine | model | cards | options | weights | KV cache | tokens | entries, replayed |"
    yield "|---|---|---|---|---:|---:|---:|---|"
    for each in sorted(kept_in(_RESULTS), key=_by_engine):
        options = " ".join(each["options"])
        line = (
            f"| {each['engine']} | {each['row']} | {each['cards']} x {each['card']} | {options} |"
        )
        if "error" in each:
            yield f"{line} {each['error']} | | | |"
            continue
        sizes, whole = each["sizes"], "whole" if each["is_whole"] else "not whole"
        yield (
            f"{line} {sizes['weights']:.2f} GiB | {sizes['KV cache']:.2f} GiB | "
            f"{each['tokens']:,.0f} | {each['entries']:,}, {whole} |"
        )


def run_cases(
    parser: argparse.ArgumentParser,
    arguments: Sequence[str] | None,
    *,
    mark: str,
    results: Path,
    measure: Callable[[str, str, str], dict[str, Any]],
    table: Callable[[], Iterator[str]],
) -> None:
    """Measure the models of a command line; with --docs, write the table of all results.

    parser: parser without arguments, whose name is that of the module.
    mark: name of the marks around the table in docs/evidence/serving.md.
    results: file of the results.
    measure: function from model, interpreter and server to a result.
    """
    parser.add_argument("models", metavar="MODEL", nargs="*")
    parser.add_argument("--python", metavar="PATH")
    parser.add_argument("--server", choices=CASES, default="vllm")
    parser.add_argument("--docs", action="store_true")
    given = parser.parse_args(arguments)
    for model in given.models or (CASES[given.server] if given.python else ()):
        result = measure(model, given.python, given.server)
        keep_in(results, result)
        print(json.dumps(result), flush=True)
    if given.docs:
        command, text = f"python -m {parser.prog} --docs", "\n".join(table())
        _PAGE.write_text(between_marks(_PAGE.read_text(), mark, command, text))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.serving.architectures", description=__doc__)
    run_cases(
        parser, arguments, mark="architectures", results=_RESULTS, measure=started, table=table
    )


if __name__ == "__main__":
    main()
