"""Part of `allocsim fit` for serving engines such as vLLM: its options and its answers."""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from allocsim.cli.options import OUT_OF_MEMORY, Parser, UsageError, add_shared, count
from allocsim.cli.output import ProgressBar, write_report

if TYPE_CHECKING:
    from allocsim.fitting.formulas import Logged, ServerOptions
    from allocsim.phantom import Gpu

_SERVERS = ("transformers", "vllm", "sglang", "tensorrt-llm", "llama.cpp", "ollama")
_KV_TYPES = (*("fp32", "fp16", "bf16", "fp8", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"),)
_ASKED = ("batch", "prompt", "decode", "requests")


def add_serving(parser: Parser) -> None:
    add = parser.add_argument
    add("--server", choices=_SERVERS, help="serving: compute the need of this engine "
        "by formula; MODEL may also be a .gguf or .safetensors file")  # fmt: skip
    add("--weights", metavar="FORMAT", help="serving: format of the weights, e.g. bf16, fp8, "
        "int8, nf4, gptq-int4, awq-int4, Q4_K_M (default: 16 bits; llama.cpp: Q4_K_M)")  # fmt: skip
    add("--kv-cache-type", choices=_KV_TYPES,
        help="serving: type of the KV cache (default: the engine's)")  # fmt: skip
    add("--log", metavar="FILE", help="serving: start-up log of the engine with this model; "
        "its figures replace assumptions")  # fmt: skip
    parser.with_dashes = frozenset(("--server-args",))
    add("--server-args", metavar="WORDS", help="serving: arguments of the engine's command, e.g. "
        "'--max-model-len 8192 --max-num-seqs 64'")  # fmt: skip
    add("--server-version", metavar="RELEASE", help="vllm: release, which determines defaults "
        "(default: that of the log, or 0.33)")  # fmt: skip
    add("--offline", action="store_true", default=None, help="vllm: defaults of LLM() in Python "
        "instead of those of the server")  # fmt: skip
    add_shared(parser, "--verbose", text="serving: print the reason of each range, too")
    add("-ngl", "--gpu-layers", metavar="N", type=count, help="llama.cpp: layers on the card "
        "(default: all)")  # fmt: skip


def set_server(arguments: argparse.Namespace) -> None:
    """Choose the server by the suffix of a weights file, unless the user chose one."""
    words = arguments.words
    if arguments.server is None and len(words) == 1:
        endings = {".gguf": "llama.cpp", ".safetensors": "transformers"}
        found = (name for end, name in endings.items() if words[0].endswith(end))
        arguments.server = next(found, None)


def run_served(arguments: argparse.Namespace, gpus: list[Gpu]) -> int:
    from allocsim.fitting import held_of, serve
    from allocsim.report import fit_served as report

    if len(arguments.words) != 1:
        raise UsageError("--server needs one MODEL: allocsim fit Qwen2.5-7B --server vllm")
    given = {name: getattr(arguments, name) for name in _ASKED}
    given = {name: value for name, value in given.items() if value is not None}
    options = _server_options(arguments)
    held = held_of(arguments.words[0], arguments.server, arguments.weights or options.weights)
    logged = None if arguments.log is None else _logged(arguments.log, arguments.server)
    if logged is not None and len(gpus) > 1:
        logged = replace(logged, refusal="")  # the refusal in the log is of one card only
    answers = [
        serve(
            held,
            arguments.server,
            gpu,
            kv_type=arguments.kv_cache_type or "",
            gpu_layers=arguments.gpu_layers,
            logged=logged,
            cards=arguments.tensor_parallel,
            options=options,
            **given,
        )
        for gpu in gpus
    ]
    write_report(arguments, report, answers)
    return 0 if any(each.fits for each in answers) else OUT_OF_MEMORY


def run_started(arguments: argparse.Namespace, gpus: list[Gpu]) -> int:
    """Start the serving engine on one card, print the answer, and return the exit code."""
    import shlex

    from allocsim.fitting import start, start_largest
    from allocsim.report import fit_started as report

    if len(arguments.words) != 1:
        raise UsageError("--server needs one MODEL: allocsim fit Qwen2.5-7B --server vllm")
    if len(gpus) != 1:
        raise UsageError("an engine is started on one kind of card; expected one --gpu")
    if arguments.out is not None:
        refuse_out(arguments.out)
    played: list[int] = []
    if arguments.requests is not None:
        played = [arguments.requests, arguments.prompt or 1024, arguments.decode or 64]
    elif arguments.prompt or arguments.decode:
        raise UsageError("--prompt and --decode of a started engine need --requests")
    try:
        words = shlex.split(arguments.server_args or "")
    except ValueError as error:
        raise UsageError(f"--server-args {arguments.server_args}: {error}") from None
    with ProgressBar() as bar:
        if stage := bar.stage("starting"):
            stage(0, 1)
        begin = partial(start_largest, arguments.find[0]) if arguments.find else start
        found = begin(
            arguments.words[0],
            arguments.server,
            gpus[0],
            arguments=words,
            python=arguments.python,
            cards=arguments.tensor_parallel or 1,
            requests=played,
            conf=arguments.conf,
            keep=arguments.out,
        )
    write_report(arguments, report, found)
    return 0 if found.fits else OUT_OF_MEMORY


def refuse_out(out: Path) -> None:
    if out.suffix != ".pickle" or not out.absolute().parent.is_dir():
        raise UsageError(f"{out} cannot be a recording; expected a .pickle in an existing folder")


def _server_options(arguments: argparse.Namespace) -> ServerOptions:
    from allocsim.fitting.formulas import ServerOptions, options_in, version_of

    for option in ("server-version", "offline"):
        if getattr(arguments, option.replace("-", "_")) and arguments.server != "vllm":
            raise UsageError(f"--{option} has an effect with vllm only, not {arguments.server}")
    words = arguments.server_args
    found = ServerOptions() if words is None else options_in(words, arguments.server)
    for option, name in (("tensor-parallel", "cards"), ("gpu-layers", "gpu_layers")):
        own, of_server = getattr(arguments, option.replace("-", "_")), getattr(found, name)
        if own is not None and of_server is not None and own != of_server:
            raise UsageError(f"--{option} {own} contradicts {of_server} in --server-args")
    if found.weights and arguments.weights:
        raise UsageError("--weights contradicts the quantization in --server-args")
    release = arguments.server_version
    version = None if release is None else version_of(release)
    return replace(found, version=version, is_offline=arguments.offline)


def _logged(path: str, server: str) -> Logged:
    from allocsim.fitting.formulas import logged_in
    from allocsim.recording import figures_in, read_log

    log = read_log(path)
    if log is None:
        raise UsageError(f"{path} is a recording; --log expects the text that a server printed")
    return logged_in(figures_in(log), server)
