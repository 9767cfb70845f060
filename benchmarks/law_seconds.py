"""Measure the processor time of `allocsim fit --engine laws`, including interpreter start.

    python -m benchmarks.law_seconds [--runs N]

Each command runs in a separate process, N times after an uncounted first run, with cached bytecode
as in an installed package; the median is printed.  Processor time depends far less than wall time
on other work of the machine.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.commands import HERE, spent

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


def seconds(question: str, bytecode: str) -> float:
    """Return the processor time of one command; raise CalledProcessError if it has no answer.

    bytecode: folder for compiled modules.
    """
    command = ["fit", *shlex.split(question), "--engine", "laws"]
    return spent(command, HERE, Path(bytecode)).processor_seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--runs", type=int, default=3)
    given = parser.parse_args()
    with TemporaryDirectory() as bytecode:
        for question in QUESTIONS:
            _, *taken = [seconds(question, bytecode) for _ in range(1 + given.runs)]
            print(f"{statistics.median(taken):6.2f} s  {question}", flush=True)


if __name__ == "__main__":
    main()
