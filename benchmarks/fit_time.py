"""Measure the processor time of `allocsim fit`, including the programs that it starts.

    python -m benchmarks.fit_time --python PATH [-o FILE]

PATH is an interpreter with PyTorch 2.15, transformers and peft.  Processor time is the sum over all
processes, which depends less than wall time on other work of the machine.  A short answer is mostly
the program's imports, which are also measured alone.  Two minutes of one core.
"""

from __future__ import annotations

import argparse
import platform
import resource
import shlex
import subprocess
import sys
from collections.abc import Sequence

from benchmarks.output import add_output, machine_and_month, show

QUESTIONS = (
    'gpt2 --gpu "RTX 4090"',
    'Llama-3-8B --gpu "H100 80GB"',
    "Llama-3-70B --gpu B200 --lora 16 --checkpointing",
    "Llama-3-70B --gpu B200 --lora 16 --checkpointing --seq 4096",
    'Qwen2.5-7B --gpu "RTX 4090" --serve --prompt 3000',
    'Llama-3.2-1B --gpu "RTX 4090" --find batch',
)
IMPORTS = (
    "import torch; from transformers import AutoModelForCausalLM, LlamaForCausalLM; "
    "from peft import get_peft_model"
)


def spent(command: Sequence[str]) -> float:
    """Return the seconds of processor time of a command and of the processes that it starts.

    Raises CalledProcessError for exit codes other than 0 and 3.
    """
    before = _of_children()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 3):  # 3: an answer that says it does not fit
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
    return _of_children() - before


def _of_children() -> float:
    """Return the seconds of processor time of all ended child processes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main(arguments: Sequence[str]) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fit_time")
    parser.add_argument("--python", required=True, metavar="PATH")
    add_output(parser)
    options = parser.parse_args(arguments)
    imports = [options.python, "-c", IMPORTS]
    spent(imports)  # the first run is slower, because files are not cached yet
    rows = [("(imports alone)", spent(imports))]
    for question in QUESTIONS:
        command = [sys.executable, "-m", "allocsim", "fit", *shlex.split(question)]
        rows.append((question, spent([*command, "--python", options.python, "--json"])))
    lines = ["| allocsim fit | processor time |", "|---|---|"]
    lines += [f"| `{what}` | {seconds:.1f} s |" for what, seconds in rows]
    lines += ["", f"Python {platform.python_version()}, {machine_and_month()};"]
    lines += ["`python -m benchmarks.fit_time`."]
    show("\n".join(lines) + "\n", options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
