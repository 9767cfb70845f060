"""Measure the processor time of `allocsim fit --engine laws`, including interpreter start.

    python -m benchmarks.law_seconds [--runs N] [--installed ALLOCSIM]

Each command runs in a separate process, N times after an uncounted first run, with cached bytecode
as in an installed package; the median is printed.  Processor time depends far less than wall time
on other work of the machine.

ALLOCSIM is the command of an installation, whose core may be compiled.  It is measured without
--engine, so that it looks for PyTorch and may answer by formula; wall time is printed, too.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.commands import HERE, Cost, spent

QUESTIONS = (
    "gpt2 --gpu L4 --batch 8",
    "Llama-3.2-1B --gpu 'RTX 4090' --batch 2 --seq 2048",
    "Llama-3-8B --gpu H200 --seq 2048 --checkpointing",
    "Qwen2.5-7B --gpu H200 --seq 600 --optimizer adafactor",
    "Gemma-2-2B --gpu H200 --attention eager --checkpointing",
    "BERT-base --gpu A100 --batch 16 --seq 512",
    "ViT-B/16 --gpu L4 --batch 64",
    "gpt2 --gpu L4 --serve --prompt 900",
    "Llama-3-8B --gpu H200 --serve",
    "Gemma-2-2B --gpu H200 --serve --attention eager",
    "Qwen2.5-0.5B --gpu L4 --serve",
    "Llama-3-70B --gpu B200 --serve",
    "Llama-3-8B --gpu 'RTX 4090'",
    "Llama-3-8B --gpu 'RTX 4090' --lora 16",
    "Llama-3.2-1B --gpu 'RTX 4070' --dtype fp32",
    "Qwen3-4B --gpu 'RTX 4090'",
    "Llama-3-8B --gpu 'RTX 3060' --serve",
)
"""Defaults: bf16, adamw, one sequence; for serving two prompts of 1,024 tokens, 64 tokens out.

The last five do not fit.
"""


def cost(question: str, folder: str, installed: str | None) -> Cost:
    """Return the cost of one command; raise CalledProcessError if it has no answer.

    folder: folder for compiled modules.
    installed: command of an installation; None for this checkout.
    """
    command = ["fit", *shlex.split(question)]
    if installed is not None:
        return spent(command, Path(folder), Path(folder), installed)
    return spent([*command, "--engine", "laws"], HERE, Path(folder))


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--installed", metavar="ALLOCSIM")
    given = parser.parse_args()
    with TemporaryDirectory() as folder:
        for question in QUESTIONS:
            _, *costs = [cost(question, folder, given.installed) for _ in range(1 + given.runs)]
            taken = f"{statistics.median(each.processor_seconds for each in costs):6.2f} s"
            if given.installed is not None:
                taken += f"  wall {statistics.median(each.seconds for each in costs):6.2f} s"
            print(f"{taken}  {question}", flush=True)


if __name__ == "__main__":
    main()
