"""Parts of `allocsim fit` with formulas: serving engines, and training on many cards."""

from __future__ import annotations

import argparse
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allocsim.cli.options import OUT_OF_MEMORY, Parser, UsageError, add_shared, count
from allocsim.cli.output import ProgressBar, say, write_report

if TYPE_CHECKING:
    from allocsim.fitting.formulas import Logged, ServerOptions
    from allocsim.fitting.formulas.training import (
        ParallelLayout,
        Precision,
        Training,
        TransformerShape,
    )
    from allocsim.phantom import Gpu

_SERVERS = ("transformers", "vllm", "sglang", "tensorrt-llm", "llama.cpp", "ollama")
_KV_TYPES = (*("fp32", "fp16", "bf16", "fp8", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"),)
_ASKED = ("batch", "prompt", "decode", "requests")
_GROUPS = {
    "tensor": "each layer is split over; with --server too",
    "pipeline": "the layers are split over, in stages (1F1B)",
    "data": "the batch is split over",
    "context": "each sequence is split over",
    "expert": "the experts of a layer are split over",
}
_USUAL_SEQ = 4096
_NUMBER = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)\s*([KMBT]?)", re.ASCII | re.IGNORECASE)
_TIMES = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}


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
    """Set `arguments.server` from the suffix of a weights file, unless the user chose an engine."""
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


def add_parallel(parser: Parser) -> None:
    group = parser.add_argument_group(
        "training on many cards, by formula (docs/reference/parallel.md)"
    )
    add = group.add_argument
    for name, what in _GROUPS.items():
        add(f"--{name}-parallel", metavar="N", type=count, help=f"cards that {what}")
    add("--zero", metavar="STAGE", type=int, choices=range(4),
        help="shard over the data parallel cards: 1 optimizer state, 2 also gradients, 3 also "
        "weights, like FSDP (default: 0, nothing)")  # fmt: skip
    add("--recompute", choices=("none", "selective", "ops", "full"),
        help="recompute activations of attention, of most operations, or of whole layers "
        "(default: none)")  # fmt: skip
    add("--virtual-stages", metavar="N", type=count,
        help="pipeline stages per card, interleaved (default: 1)")  # fmt: skip
    add("--no-sequence-parallel", action="store_true", default=None,
        help="do not split norms over the tensor parallel cards")  # fmt: skip
    add("--grad-dtype", choices=("bf16", "fp32"),
        help="type of gradients in mixed precision (default: bf16)")  # fmt: skip
    add("--kernels", choices=("fused", "eager"), help="fused, like Megatron with Transformer "
        "Engine, or separate PyTorch operations (default: fused)")  # fmt: skip
    add("--parameters", metavar="N", type=_parameters, help="number of parameters of a typical "
        "model, e.g. 100B, instead of MODEL")  # fmt: skip
    add("--plan", action="store_true", default=None,
        help="find the fewest cards, and how to split the model over them")  # fmt: skip
    add("--gpus", metavar="N", type=count, dest="cards", help="with --plan: use exactly N cards")


def _parameters(text: str) -> int:
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(
            f"{text[:80]!r} is not a number of parameters; expected e.g. 100B"
        )
    return round(float(match[1]) * _TIMES[match[2].lower()])


def run_by_formula(arguments: argparse.Namespace, gpus: list[Gpu]) -> int:
    """Answer `allocsim fit` by formulas, for cards of one kind; return the exit code.

    gpus: kinds of cards that the user gave; several are refused.
    """
    if len(gpus) > 1:
        raise UsageError("formulas are for one kind of card; expected one --gpu")
    from allocsim.fitting import find_layouts, shard, unused_words
    from allocsim.report import fit_plan as report

    training, gpu = _training(arguments), gpus[0]
    unused = tuple(unused_words(arguments.words[0])) if arguments.words else ()
    unused += (gpu.chosen,) * bool(gpu.chosen)
    if arguments.plan:
        for sentence in unused:
            say(f"allocsim: {sentence}\n")
        planned = find_layouts(training, gpu, cards=arguments.cards, micro_batch=arguments.batch)
        write_report(arguments, report, training, gpu, planned)
        return 0 if planned.fewest is not None else OUT_OF_MEMORY
    found, assumed = shard(training, gpu), _assumptions_unlike_a_run(arguments, training)
    assumed = "; ".join(filter(None, (assumed, *unused)))
    write_report(arguments, report, training, gpu, found, assumed)
    return 0 if found.fits else OUT_OF_MEMORY


def _training(arguments: argparse.Namespace) -> Training:
    from allocsim.fitting import model_of, precision_of, usual_attention
    from allocsim.fitting.formulas.training import EAGER, FUSED, Training

    if arguments.grad_dtype is not None and arguments.dtype is not None:
        raise UsageError("--grad-dtype applies to mixed precision; leave --dtype out")
    gradients = 4 if arguments.grad_dtype == "fp32" else 2
    name, shape, most = _shape(arguments)
    attention = arguments.attention
    if attention is None and arguments.words:
        attention = usual_attention(model_of(arguments.words[0]))
    return Training(
        name,
        shape,
        replace(_layout(arguments, most), flash=attention != "eager"),
        precision_of(arguments.dtype, arguments.optimizer or "adamw", gradients),
        EAGER if arguments.kernels == "eager" else FUSED,
    )


def _shape(arguments: argparse.Namespace) -> tuple[str, TransformerShape, int | None]:
    # Returns (name, shape, longest sequence that the model supports or None if it is not limited).
    from allocsim.fitting import model_of, most_positions, shape_of
    from allocsim.fitting.formulas.training import shape_for

    words = arguments.words
    if arguments.parameters is not None:
        if words:
            raise UsageError("MODEL and --parameters both select the model; expected one")
        shape = shape_for(arguments.parameters)
        return f"a model of {arguments.parameters / 1e9:,g} B parameters", shape, None
    if len(words) != 1:
        raise UsageError("formulas need a MODEL, or --parameters 100B")
    model = model_of(words[0])
    return model.name, shape_of(model), most_positions(model)


def _layout(arguments: argparse.Namespace, most: int | None) -> ParallelLayout:
    from allocsim.fitting.formulas.training import ParallelLayout

    if arguments.checkpointing and arguments.recompute not in (None, "full"):
        raise UsageError(
            f"--checkpointing means --recompute full, not --recompute {arguments.recompute}"
        )
    given: dict[str, Any] = {name: getattr(arguments, f"{name}_parallel") for name in _GROUPS} | {
        "zero": arguments.zero,
        "recompute": "full" if arguments.checkpointing else arguments.recompute,
        "chunks": arguments.virtual_stages,
        "micro_batch": arguments.batch,
        "seq": arguments.seq or min(_USUAL_SEQ, most or _USUAL_SEQ),
        "micro_batches": arguments.accumulate,
    }
    layout = ParallelLayout(**{name: value for name, value in given.items() if value is not None})
    if most is not None and layout.seq > most:
        raise UsageError(f"--seq {layout.seq:,} is more than the model's {most:,} positions")
    return replace(layout, sequence_parallel=not arguments.no_sequence_parallel)


def _assumptions_unlike_a_run(arguments: argparse.Namespace, training: Training) -> str:
    from allocsim.fitting import model_of, precision_of, usual_lengths

    if not arguments.words or training.layout.ranks > 1:
        return ""
    optimizer = arguments.optimizer or "adamw"
    here, there, options = [], [], []
    usual = usual_lengths(model_of(arguments.words[0])).get("seq", training.layout.seq)
    if arguments.seq is None and usual != training.layout.seq:
        here.append(f"{training.layout.seq:,} tokens")
        there.append(f"{usual:,} tokens")
        options.append(f"--seq {usual}")
    plain = precision_of("bf16", optimizer, 2)
    if arguments.dtype is None and plain != training.precision:
        here.append(f"{_bytes_text(training.precision)} bytes a parameter (mixed precision)")
        there.append(f"{_bytes_text(plain)} (bf16)")
        options.append("--dtype bf16")
    if not options:
        return ""
    return (
        f"{' and '.join(here)}; the program and its law (--engine laws) assume "
        f"{' and '.join(there)}. {' '.join(options)} makes them alike"
    )


def _bytes_text(precision: Precision) -> str:
    parts = precision.weights, precision.gradients, precision.optimizer
    return " + ".join(f"{each:g}" for each in parts)
