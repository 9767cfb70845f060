"""`allocsim fit`: report if a model fits a card."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allocsim.cli import fit_formulas
from allocsim.cli.fit_options import Way, add_pairs, gpus_of, refuse_ineffective, task_of, way_of
from allocsim.cli.options import (
    OUT_OF_MEMORY,
    Commands,
    Parser,
    UsageError,
    add_command,
    add_shared,
    count,
    positive,
)
from allocsim.cli.output import ProgressBar, say, write, write_json, write_report, writing

if TYPE_CHECKING:
    from allocsim.fitting import Estimate, Fit, Task
    from allocsim.phantom import Gpu

_SUMMARY = "report if a model fits a card, by running it without a GPU"
_DESCRIPTION = """\
Runs the real program with real PyTorch on a phantom of the card.  No kernel
runs, so a full-size model takes seconds.  Workspaces of kernels, and sizes that
depend on values, can differ from those on the card: docs/evidence/real-gpu.md compares
runs with an H200.  MODEL is a preset (--list-models), a Hugging Face
config.json or its folder, or MODULE:FUNCTION that returns a model, or a model
and a batch.  Any program may follow -- instead.  Without PyTorch, the requests
of many presets are computed from recorded runs.  --server computes by formula
what a serving engine needs."""
_EPILOG = """\
example: allocsim fit Llama-3.2-1B --gpu "RTX 4090" --batch 2 --seq 2048
It needs a Python with a CUDA build of PyTorch, and transformers:
pip install 'allocsim[fit]'.
exit codes: 0 it fits (at least one of the cards), 3 it does not or may not,
2 no answer"""
_USAGE = (
    "allocsim fit MODEL --gpu NAME [--train | --serve] [options]\n"
    "       allocsim fit --gpu NAME [options] -- PROGRAM [ARGUMENT ...]\n"
    "       allocsim fit --html FILE [MODEL] [options]"
)
_DTYPES = ("fp32", "bf16", "fp16", "autocast-bf16", "autocast-fp16")
_OPTIMIZERS = (
    *("adamw", "adamw-fused", "adamw-foreach-off", "adam8bit", "adamw8bit", "paged-adamw8bit"),
    *("adafactor", "sgd", "momentum"),
)
_QUANTS = ("nf4", "nf4-double", "int8", "fp8")
_ATTENTION = ("sdpa", "eager", "flash")
_STARTS = ("clean", "made")
_PARALLEL = {"fsdp": "FSDP2, sharding each layer", "ddp": "DistributedDataParallel"}
_SIZES = ("batch", "seq", "image", "prompt", "decode", "accumulate", "lora", "gpus")
_OF_SERVERS = ("max-model-len", "max-num-seqs", "gpu-memory-utilization")
_PAGE_MODEL, _PAGE_CARD = "Llama-3.2-1B", "RTX 4090"
"""Model and card that the HTML calculator (--html) shows first by default."""
_USUAL = {"engine": "auto", "multiple_of": 1, "host_spill": 0}
"""Defaults applied after parsing; until then None marks an option that was not given."""


def add_to(commands: Commands) -> None:
    more = {"epilog": _EPILOG, "usage": _USAGE}
    parser = add_command(commands, "fit", _SUMMARY, _DESCRIPTION, run, **more)
    parser.set_defaults(has_separator=False, needs_numpy=False)
    add = parser.add_argument
    add("words", metavar="MODEL", nargs="*", help="the model; or, after --, a program")
    add("--gpu", metavar="NAME", action="append", dest="gpus",
        help='name of a card, e.g. "RTX 4090", or "all"; may be repeated')  # fmt: skip
    add_shared(parser, "--device-memory", text="memory of the card, e.g. 24GiB, instead of --gpu")
    add_shared(parser, "--host-spill")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--train", action="store_true", help="train the model (the default)")
    what.add_argument("--serve", action="store_true", help="generate answers to prompts")
    # None marks an option that was not given; `Task` has the defaults.
    add("--dtype", choices=_DTYPES,
        help="precision of weights, gradients and optimizer state; autocast-* keeps "
        "fp32 weights (default: bf16)")  # fmt: skip
    add("--batch", metavar="N", type=count, help="sequences or images per step (default: 1)")
    add("--seq", metavar="N", type=count,
        help="training: tokens per sequence (default: 1024, with formulas 4096, at most the "
        "model's positions)")  # fmt: skip
    add("--image", metavar="N", type=count,
        help="height and width of an image in pixels (default: 224, or those that an image "
        "generator was trained for)")  # fmt: skip
    add("--lengths", metavar="FILE", help="varying sequence lengths: a file of numbers, "
        "uniform:LOW:HIGH or lognormal:MEDIAN:SIGMA; padded to the longest of a batch")  # fmt: skip
    add("--optimizer", choices=_OPTIMIZERS, help="training: optimizer (default: adamw)")
    add("--checkpointing", action="store_true", default=None,
        help="enable activation checkpointing")  # fmt: skip
    add("--checkpoint-layers", metavar="N",
        type=lambda text: 0 if text == "auto" else positive(text),
        help="checkpoint only N layers; auto: the fewest with which it fits")  # fmt: skip
    add("--accumulate", metavar="N", type=count, help="micro-batches per step (default: 1)")
    add("--lora", metavar="RANK", type=positive, help="train only LoRA adapters of this rank")
    add("--lora-targets", metavar="NAMES",
        help="modules with adapters, e.g. q_proj,v_proj (default: all linear layers)")  # fmt: skip
    _add_formats(parser)
    add("--attention", choices=_ATTENTION, help="attention implementation "
        "(default: sdpa, or eager for a model that needs it)")  # fmt: skip
    add("--compile", action="store_true", default=None, dest="compiles", help="use torch.compile")
    add("--channels-last", action="store_true", default=None,
        help="use the channels_last memory format")  # fmt: skip
    add("--steps", metavar="N", type=count, help="training steps (default: 4)")
    add("--prompt", metavar="N", type=count, help="serving: tokens of a prompt (default: 1024)")
    add("--decode", metavar="N", type=count, help="serving: tokens to generate (default: 64)")
    add("--requests", metavar="N", type=count,
        help="serving: requests, one after another (default: 2), or at once")  # fmt: skip
    fit_formulas.add_serving(parser)
    add("--start", choices=_STARTS, help="clean: weights are loaded in place; made: they are "
        "created on the device, which adds to the peak (default: clean)")  # fmt: skip
    shared = parser.add_mutually_exclusive_group()
    for name, how in _PARALLEL.items():
        shared.add_argument(f"--{name}", action="store_const", const=name, dest="parallel",
            help=f"train on several GPUs with {how}")  # fmt: skip
    add("--ranks", metavar="N", type=count, help="number of GPUs (default: 1)")
    add("--rank", metavar="R", type=count, help="rank whose memory is computed (default: 0)")
    add("--find", metavar="SIZE", type=_sizes_to_find, help="find the largest size that fits: "
        + ", ".join(_SIZES[:-1]) + "; or the fewest gpus; or, e.g. for batch,seq, the largest "
        "batch for several values of seq; for an engine that is started: "
        + ", ".join(_OF_SERVERS))  # fmt: skip
    also = "values of the second size of --find, e.g. seq=512,1024 (default: half, once and twice "
    add("--with", metavar="NAME=N,N", dest="others", help=f"{also}the given value)")
    add("--multiple-of", metavar="N", type=positive,
        help="with --find, try only multiples of N (default: 1)")  # fmt: skip
    add_shared(parser, "--conf", text="PYTORCH_CUDA_ALLOC_CONF of the program")
    add_shared(parser, "--torch",
        text="release of PyTorch, {releases} (default: the installed one)")  # fmt: skip
    add("--transformers", metavar="VERSION", help="with laws, which are for "
        "transformers 5.23: your release; a note reports a difference")  # fmt: skip
    add("--python", metavar="PATH", help="Python interpreter with PyTorch (default: this one, "
        "then python3)")  # fmt: skip
    add("--config", metavar="FILE", help="JSON or YAML configuration of a training (Hugging Face, "
        "TRL, axolotl, LLaMA-Factory, torchtune, accelerate, DeepSpeed); other options "
        "override it")  # fmt: skip
    add("--engine", choices=("auto", "program", "laws", "formula"),
        help="program: run it with PyTorch; laws: compute its requests from recorded runs, without "
        "PyTorch; formula: estimate, as a range (default: the most exact that answers, or formula "
        "if an option needs it)")  # fmt: skip
    add("--no-values", action="store_true", default=None,
        help="do not compute the program's integers and booleans; all are zero")  # fmt: skip
    _add_outputs(parser)
    fit_formulas.add_parallel(parser)
    parser.set_defaults(host_spill=None)


def _add_formats(parser: Parser) -> None:
    add_pairs(parser)
    add = parser.add_argument
    add("--quant", choices=_QUANTS, help="with --lora: frozen weights in 4 bits (QLoRA); double "
        "quantizes their scales, too; image generators: format of denoiser and T5")  # fmt: skip
    add("--offload", action="store_true", default=None,
        help="image generators: hold only the network that runs on the card")  # fmt: skip


def _add_outputs(parser: Parser) -> None:
    add = parser.add_argument
    add("-o", "--out", metavar="FILE", type=Path, help="write the recording as .pickle; with "
        "--find, that of the result")  # fmt: skip
    add("--html", metavar="FILE", type=Path, help="write a page that answers offline, by laws, "
        "for any model, card, batch and length; it opens at MODEL and the options")  # fmt: skip
    add("--show-program", action="store_true", help="print the program for MODEL, and stop")
    add("--list-models", action="store_true", help="print the names of the presets, and stop")
    add("--list-gpus", action="store_true", help="print the names of the cards, and stop")
    add_shared(parser, "--json")


def _sizes_to_find(text: str) -> list[str]:
    names = text.split(",")
    if text in _OF_SERVERS:
        return names
    if not set(names) <= set(_SIZES) or len(names) > 2 or len(set(names)) < len(names):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a size; expected one of {', '.join((*_SIZES, *_OF_SERVERS))}, or two "
            "of a task, e.g. batch,seq"
        )
    if len(names) > 1 and "gpus" in names:
        raise argparse.ArgumentTypeError("gpus cannot be combined with another size")
    return names


def _apply_config(arguments: argparse.Namespace) -> None:
    """Set the options that the file of --config gives, except those on the command line."""
    arguments.config_notes = ()
    if arguments.config is None:
        return
    from allocsim.fitting import read_config

    model = arguments.words[0] if arguments.words else ""
    found = read_config(arguments.config, model, has_adapters=arguments.lora is not None)
    overridden = []
    for name, value in found.values.items():
        if name == "model":
            arguments.words = arguments.words or [value]
        elif getattr(arguments, name) is None:
            setattr(arguments, name, value)
        else:
            overridden.append(name)
    if found.per_example > 1:
        arguments.batch = (arguments.batch or 1) * found.per_example
    arguments.config_notes = found.sentences(overridden)


def run(arguments: argparse.Namespace) -> int:
    fit_formulas.set_server(arguments)
    way = way_of(arguments)
    refuse_ineffective(arguments, way)
    if way is not Way.ENGINE and set(arguments.find or ()) & set(_OF_SERVERS):
        raise UsageError(f"--find {arguments.find[0]} needs --server vllm --engine program")
    _apply_config(arguments)
    for name, usual in _USUAL.items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, usual)
    if way is Way.LIST:
        return _print_names(arguments)
    if way in (Way.SERVER, Way.TRANSFORMERS, Way.GGML):
        return fit_formulas.run_served(arguments, gpus_of(arguments))
    if way in (Way.LAYOUT, Way.PLAN):
        return fit_formulas.run_by_formula(arguments, gpus_of(arguments))
    from allocsim.cli import import_numpy

    import_numpy()  # formulas need no arrays
    if way is Way.PAGE:
        return _write_page(arguments)
    if way is Way.ENGINE:
        return fit_formulas.run_started(arguments, gpus_of(arguments))
    return _run_by_task(arguments, way)


def _run_by_task(arguments: argparse.Namespace, way: Way) -> int:
    task = task_of(arguments)
    if arguments.checkpoint_layers == 0 and way is not Way.ONE:
        raise UsageError("--checkpoint-layers auto is a search of its own; expected N")
    if way is Way.SHOW:
        from allocsim.fitting import program_of

        if task is None:
            raise UsageError("--show-program prints the program of a MODEL, not your own")
        write(program_of(task))
        return 0
    gpus = gpus_of(arguments)
    if arguments.out is not None:
        fit_formulas.refuse_out(arguments.out)
    if task is not None and way is not Way.ONE:
        for sentence in arguments.config_notes:
            say(f"allocsim: {sentence}\n")
        return _find(arguments, way, task, gpus)
    return _fit(arguments, task, gpus)


def _write_page(arguments: argparse.Namespace) -> int:
    from allocsim.fitting import law_cards, law_families, law_models, opening_at, page_laws
    from allocsim.report.calculator import calculator_page, packed_laws

    out = arguments.html
    _refuse_page(arguments)
    # The page opens at this model and card.
    arguments.words = arguments.words or [_PAGE_MODEL]
    if not arguments.gpus and arguments.device_memory is None:
        arguments.gpus = [_PAGE_CARD]
    task, (gpu,) = task_of(arguments), gpus_of(arguments)
    assert task is not None
    opening, packed = opening_at(task, gpu), []
    with ProgressBar() as bar:
        watch, families = bar.stage("packing laws"), law_families()
        for number, family in enumerate(families):
            if watch:
                watch(number, len(families))
            packed.append(packed_laws(page_laws(family)))
    page = calculator_page(packed, law_models(), law_cards(), opening).encode()
    with writing(out):
        out.write_bytes(page)
    n_laws = sum(each.n_laws for each in packed)
    n_programs = sum(len(each.programs) for each in packed)
    size = f"{len(page) / 1e6:.1f} MB"
    write(f"{out}: {size}, {n_laws} laws of {n_programs} programs; opens without a network\n")
    return 0


def _refuse_page(arguments: argparse.Namespace) -> None:
    if len(arguments.words) > 1:
        raise UsageError("--html is for a MODEL; there is no law for a program of your own")
    if len(arguments.gpus or ()) > 1 or "all" in (arguments.gpus or ()):
        raise UsageError(
            "the page has every card; expected at most one --gpu, the card that it opens at"
        )
    out = arguments.html
    if out.is_dir() or not out.absolute().parent.is_dir():
        raise UsageError(
            f"{out} cannot be a page; expected the name of a file in an existing folder"
        )


def _print_names(arguments: argparse.Namespace) -> int:
    if arguments.list_models:
        from allocsim.fitting import CONFIGURATIONS, GENERATORS, TORCHVISION

        key, names = "models", [*CONFIGURATIONS, *TORCHVISION, *GENERATORS]
    else:
        from allocsim.phantom import CARDS

        key, names = "gpus", list(CARDS)
    if arguments.json:
        write_json({key: names})
    else:
        write("".join(f"{name}\n" for name in names))
    return 0


def _fit(arguments: argparse.Namespace, task: Task | None, gpus: list[Gpu]) -> int:
    from allocsim.phantom import begin_to_find_torch

    if task is not None and arguments.engine == "auto":
        begin_to_find_torch(arguments.python)  # while modules are imported
    from allocsim.fitting import fewest_checkpointed, fit_cards, fit_command
    from allocsim.report import fit as report

    if arguments.out is not None and len(gpus) > 1:
        raise UsageError("-o writes one recording; expected one card")
    how = _engine_arguments(arguments)
    more = {
        "keep": arguments.out,
        "host_spill": arguments.host_spill,
        "values": not arguments.no_values,
    }
    with ProgressBar() as bar:
        if stage := bar.stage("running"):
            stage(0, 1)
        if task is not None:
            if arguments.checkpoint_layers == 0:
                task, sentence = fewest_checkpointed(task, gpus, bar.trying, **how)
                arguments.config_notes = (*arguments.config_notes, sentence)
            found = fit_cards(task, gpus, **how, **more)
        else:
            more |= {name: how[name] for name in ("conf", "torch_version")}
            found = [fit_command(arguments.words, gpu, **more) for gpu in gpus]
    found[0] = replace(found[0], notes=(*arguments.config_notes, *found[0].notes))
    shown = _advice_and_owners(found[0], how) if len(found) == 1 else ()
    write_report(arguments, report, found, *shown)
    return 0 if any(each.fits or each.runs_on_loan for each in found) else OUT_OF_MEMORY


def _advice_and_owners(found: Fit | Estimate, how: dict[str, Any]) -> tuple[Any, ...]:
    from allocsim.fitting import Fit, advise

    advice = None
    if found.task is not None:
        with ProgressBar() as bar:
            bar.trying("changes")
            advice = advise(found, **{name: how[name] for name in how if name != "engine"})
    if not isinstance(found, Fit):
        return (advice,)
    from allocsim.analysis.top import tops_of_fit

    return (advice, *tops_of_fit(found))


def _find(arguments: argparse.Namespace, way: Way, task: Task, gpus: list[Gpu]) -> int:
    from allocsim.fitting import Fewest, Frontier, Largest, fewest, frontier, largest
    from allocsim.report import fit_find as report

    if len(gpus) > 1:
        raise UsageError("--find searches on one card; expected one --gpu")
    if way is Way.FRONTIER and arguments.out is not None:
        raise UsageError("-o writes one recording; expected --find with one size")
    if way is Way.FEWEST and not task.parallel:
        raise UsageError("--find gpus needs --fsdp or --ddp")
    (gpu,), name, step = gpus, arguments.find[0], arguments.multiple_of
    found: Largest | Fewest | Frontier
    with ProgressBar() as bar:
        how = _engine_arguments(arguments) | {"watch": bar.trying}
        if way is Way.FRONTIER:
            other = arguments.find[1]
            values = _sizes_searched(arguments.others, other)
            found = frontier(task, name, other, gpu, values=values, step=step, **how)
        elif way is Way.FEWEST:
            found = fewest(task, gpu, keep=arguments.out, **how)
        else:
            found = largest(task, name, gpu, step=step, keep=arguments.out, **how)
    write_report(arguments, report, task, gpu, found)
    return 0 if found.fits else OUT_OF_MEMORY


def _sizes_searched(with_option: str | None, other: str) -> tuple[int, ...]:
    if with_option is None:
        return ()
    name, _, values = with_option.partition("=")
    if name != other or not all(value.isdecimal() for value in values.split(",")):
        raise UsageError(f"--with {with_option}: expected values of {other}, e.g. {other}=512,1024")
    return tuple(map(int, values.split(",")))


def _engine_arguments(arguments: argparse.Namespace) -> dict[str, Any]:
    named = ("engine", "conf", "python", "transformers")
    return {"torch_version": arguments.torch, **{name: getattr(arguments, name) for name in named}}
