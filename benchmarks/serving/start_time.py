"""Time the first and a later start of an engine, as a user's command takes them.

    python -m benchmarks.serving.start_time --python PATH [--server sglang] [MODEL ...]
    python -m benchmarks.serving.start_time --docs

The command is `allocsim fit MODEL --serve --engine program` with the engine's default options.  The
first start begins with an empty cache folder, so it compiles the stubs and the model.  Results are
kept in results/serving_start_time.json, and --docs writes them to docs/evidence/serving.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.serving.__main__ import HERE
from benchmarks.serving.architectures import CASES, run_cases
from benchmarks.serving.started import kept_in

_RESULTS = HERE.parent / "results" / "serving_start_time.json"


def timed(model: str, python: str, server: str) -> dict[str, Any]:
    """Start a model twice; return the seconds and the tokens of both starts."""
    card, cards = CASES[server][model]
    command = [sys.executable, "-m", "allocsim", "fit", model, "--gpu", card, "--serve", "--json"]
    command += ["--server", server, "--engine", "program", "--python", python]
    if cards > 1:
        command += ["--tensor-parallel", str(cards)]
    answers, seconds = [], []
    with TemporaryDirectory() as cache:
        for _ in range(2):
            began = time.perf_counter()
            done = subprocess.run(
                command,
                env={**os.environ, "ALLOCSIM_CACHE": cache},
                stdout=subprocess.PIPE,
                check=False,
            )
            seconds.append(round(time.perf_counter() - began, 1))
            answers.append(json.loads(done.stdout))
    return {
        "row": model,
        "engine": " ".join(answers[0]["program"].split()[:2]),
        "card": card,
        "cards": cards,
        "seconds": seconds,
        "phases": [each["start"]["phase"] for each in answers],
        "tokens": [int(each["start"]["figures"]["kv_cache_tokens"]) for each in answers],
    }


def table() -> Iterator[str]:
    """Yield the table of all results."""
    yield "| engine | model | cards | first start | later start | tokens, first | tokens, later |"
    yield "|---|---|---|---:|---:|---:|---:|"
    for each in sorted(kept_in(_RESULTS), key=lambda each: (each["engine"], each["row"].lower())):
        first, later = each["seconds"]
        tokens = " | ".join(f"{number:,.0f}" for number in each["tokens"])
        yield (
            f"| {each['engine']} | {each['row']} | {each['cards']} x {each['card']} | "
            f"{first:.0f} s | {later:.0f} s | {tokens} |"
        )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.serving.start_time", description=__doc__)
    run_cases(parser, arguments, mark="start times", results=_RESULTS, measure=timed, table=table)


if __name__ == "__main__":
    main()
