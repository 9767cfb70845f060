"""Options of `allocsim fit`: the kinds of answer that each one affects, and the resulting `Task`.

An option without effect on the answer is refused, never ignored.
"""

from __future__ import annotations

import argparse
from enum import Enum
from typing import TYPE_CHECKING, Any

from allocsim.cli.options import Parser, UsageError

if TYPE_CHECKING:
    from allocsim.fitting import Task
    from allocsim.phantom import Gpu

_REFERENCES = ("copy", "half-copy", "adapter")


def add_pairs(parser: Parser) -> None:
    add = parser.add_argument
    add("--reference", choices=_REFERENCES,
        help="train on pairs of sequences, like DPO, with a reference: a frozen copy of the model, "
        "one in 16 bits beside weights in 32, or the model without its adapters; --batch counts "
        "pairs")  # fmt: skip
    add("--whole-softmax", action="store_true", default=None,
        help="with --reference: compute the log-softmax of all logits at once, like LLaMA-Factory "
        "and torchtune, and not for each sequence, like TRL")  # fmt: skip


class Way(Enum):
    """Kind of answer that `fit` computes, such as a run of the program or a formula.

    The value of a member is an error text, for an option without effect on this kind of answer.
    """

    LIST = "--list-models and --list-gpus print names and stop"
    PAGE = "--{option} applies to a single answer and has no effect on the page of --html"
    SHOW = "--{option} has no effect with --show-program"
    SERVER = "--{option} has no effect with --server"
    TRANSFORMERS = "--{option} has no effect with --server transformers"
    ENGINE = "--{option} has no effect on an engine that is started; use --server-args"
    GGML = "--{option} has no effect with --server llama.cpp or ollama"
    LAYOUT = "--{option} applies to a program that runs; formulas do not use it"
    PLAN = "--{option} has no effect with --plan"
    COMMAND = "--{option} is for a MODEL; a program runs unchanged"
    ONE = "--{option} has no effect here"
    FIND = "--{option} has no effect with --find; leave it out"
    FRONTIER = "--{option} has no effect with --find of two sizes; leave it out"
    FEWEST = "--{option} has no effect with --find gpus; leave it out"


_ALL = frozenset(Way)
_SEARCHES = frozenset((Way.FIND, Way.FRONTIER, Way.FEWEST))
_RUNS = _SEARCHES | {Way.ONE, Way.SHOW}
_MODELS = _RUNS | {Way.PAGE}
_SERVERS = frozenset((Way.SERVER, Way.TRANSFORMERS, Way.GGML))
_STARTED = ("vllm", "sglang")
"""Serving engines that can run on a phantom GPU, that is, without a GPU."""
_FORMULAS = frozenset((Way.LAYOUT, Way.PLAN))
_LAYOUT = frozenset((Way.LAYOUT,))
_GROUPS = ("pipeline_parallel", "data_parallel", "expert_parallel", "zero", "recompute")

EFFECTS: dict[str, frozenset[Way]] = {
    **dict.fromkeys(("words", "gpus", "device_memory"), _ALL),
    "host_spill": frozenset((Way.ONE, Way.COMMAND, Way.SHOW)),
    "train": _MODELS | _FORMULAS,
    "serve": _MODELS | _SERVERS | {Way.ENGINE},
    **dict.fromkeys(("dtype", "seq", "optimizer", "accumulate", "attention"), _MODELS | _FORMULAS),
    "batch": _MODELS | _FORMULAS | _SERVERS,
    "checkpointing": _MODELS | _LAYOUT,
    **dict.fromkeys(("lora", "compiles", "steps", "start"), _MODELS),
    **dict.fromkeys(
        ("image", "lengths", "lora_targets", "quant", "channels_last", "parallel"), _RUNS
    ),
    **dict.fromkeys(("checkpoint_layers", "offload", "reference", "whole_softmax"), _RUNS),
    **dict.fromkeys(("ranks", "rank"), _RUNS - {Way.FEWEST}),
    **dict.fromkeys(("prompt", "decode"), _MODELS | _SERVERS | {Way.ENGINE}),
    "requests": _MODELS | {Way.TRANSFORMERS, Way.ENGINE},
    "server": _SERVERS | {Way.ENGINE},
    "server_args": _SERVERS - {Way.TRANSFORMERS} | {Way.ENGINE},
    **dict.fromkeys(("weights", "verbose"), _SERVERS),
    **dict.fromkeys(("kv_cache_type", "log"), _SERVERS - {Way.TRANSFORMERS}),
    **dict.fromkeys(("server_version", "offline"), frozenset((Way.SERVER,))),
    "gpu_layers": frozenset((Way.GGML,)),
    "find": _SEARCHES | {Way.SHOW, Way.ENGINE},
    "others": frozenset((Way.FRONTIER, Way.SHOW)),
    "multiple_of": frozenset((Way.FIND, Way.FRONTIER, Way.SHOW)),
    "conf": _RUNS | {Way.COMMAND, Way.ENGINE},
    "torch": _RUNS | {Way.COMMAND},
    "config": _RUNS,
    "transformers": _MODELS,
    "python": _RUNS | {Way.ENGINE},
    "no_values": frozenset((Way.ONE, Way.COMMAND)),
    "engine": _ALL,
    "out": _RUNS | {Way.COMMAND, Way.ENGINE},
    "html": frozenset((Way.PAGE,)),
    "show_program": frozenset((Way.SHOW,)),
    **dict.fromkeys(("list_models", "list_gpus"), frozenset((Way.LIST,))),
    "json": _ALL - {Way.PAGE},
    "tensor_parallel": _LAYOUT | {Way.SERVER, Way.ENGINE},
    **dict.fromkeys(_GROUPS, _LAYOUT),
    **dict.fromkeys(("context_parallel", "virtual_stages", "no_sequence_parallel"), _FORMULAS),
    **dict.fromkeys(("grad_dtype", "kernels", "parameters"), _FORMULAS),
    **dict.fromkeys(("plan", "cards"), frozenset((Way.PLAN,))),
}
"""Dictionary from an option's name in the parsed arguments to the kinds of answer it affects."""

_OF_FORMULAS = tuple(
    name for name, ways in EFFECTS.items() if ways & _FORMULAS and not ways & _MODELS
)
"""Options that only formulas use; each of them makes `fit` answer by formulas."""

ENGINES_OF: dict[Way, tuple[str, ...]] = {
    Way.PAGE: ("auto", "laws"),
    Way.COMMAND: ("auto", "program"),
    Way.ENGINE: ("auto", "program"),
    **dict.fromkeys((*_SERVERS, *_FORMULAS), ("auto", "formula")),
    **dict.fromkeys(_RUNS, ("auto", "program", "laws")),
    Way.LIST: ("auto", "program", "laws", "formula"),
}
"""Dictionary from a kind of answer to the allowed values of --engine."""

_OPTIONS = {
    **{"gpus": "gpu", "compiles": "compile", "others": "with", "cards": "gpus"},
    "no_sequence_parallel": "no-sequence-parallel",
}
_BELONGS = {
    **dict.fromkeys(
        ("weights", "kv_cache_type", "log", "server_args"),
        "needs --server ENGINE, e.g. --server vllm",
    ),
    "gpu_layers": "needs --server llama.cpp or --server ollama",
    **dict.fromkeys(("server_version", "offline"), "needs --server vllm"),
    "others": "needs --find with two sizes, e.g. batch,seq",
    "multiple_of": "needs --find with a size",
    "no_values": "applies to a single answer by a program",
    "cards": "needs --plan; otherwise the parallel groups give the number of cards",
}
"""Dictionary from an option to its error text where it has no effect.

For options without a key, the error text is the value of the kind of answer (`Way`).
"""
_BETWEEN_SERVERS = {
    "gpu_layers": "has an effect with llama.cpp and ollama only",
    "kv_cache_type": "has no effect with transformers, whose cache has the model's type",
    "find": "needs --engine program, which starts vllm or sglang; by formula the row Largest safe "
    "gives the longest request",
    "log": "has no effect with transformers, which prints no log",
    "server_args": "has no effect with transformers, which is no server",
    "server_version": "has an effect with vllm only",
    "offline": "has an effect with vllm only",
    "requests": "has an effect with transformers only; other servers reserve their cache first",
    "tensor_parallel": "has an effect with vllm, sglang and tensorrt-llm only",
}


def way_of(arguments: argparse.Namespace) -> Way:
    """Return the kind of answer that the options select; call `set_server` first."""
    if arguments.list_models or arguments.list_gpus:
        return Way.LIST
    if arguments.html is not None:
        return Way.PAGE
    if arguments.server is not None:
        if _is_started(arguments):
            return Way.ENGINE
        known = {"transformers": Way.TRANSFORMERS, "llama.cpp": Way.GGML, "ollama": Way.GGML}
        return known.get(arguments.server, Way.SERVER)
    if len(arguments.words) > 1 or arguments.has_separator:
        return Way.SHOW if arguments.show_program else Way.COMMAND
    return _way_of_model(arguments)


def _is_started(arguments: argparse.Namespace) -> bool:
    is_asked = arguments.engine == "program"
    is_found = arguments.engine in (None, "auto") and arguments.python is not None
    return arguments.server in _STARTED and (is_asked or is_found)


def _way_of_model(arguments: argparse.Namespace) -> Way:
    sought = tuple(arguments.find or ())
    if arguments.plan:
        return Way.PLAN
    if _is_of_formulas(arguments):
        return Way.LAYOUT
    if arguments.show_program:
        return Way.SHOW
    if sought == ("gpus",):
        return Way.FEWEST
    return (Way.ONE, Way.FIND, Way.FRONTIER)[len(sought)]


def _is_of_formulas(arguments: argparse.Namespace) -> bool:
    return arguments.engine == "formula" or any(
        _is_given(getattr(arguments, name)) for name in _OF_FORMULAS
    )


def refuse_ineffective(arguments: argparse.Namespace, way: Way) -> None:
    """Raise UsageError if an option is given that has no effect on answers of the kind `way`."""
    for name, ways in EFFECTS.items():
        if way not in ways and way is not Way.LIST and _is_given(getattr(arguments, name)):
            raise UsageError(_refusal(name, way, arguments))
    engine = arguments.engine
    if engine is not None and engine not in ENGINES_OF[way]:
        raise UsageError(_engine_refusal(engine, way, arguments))
    if engine == "laws" and arguments.python is not None:
        raise UsageError("--python applies to a program that runs; --engine laws runs none")
    if engine == "laws" and arguments.no_values:
        raise UsageError("--no-values applies to a program that runs; --engine laws runs none")


def _is_given(value: object) -> bool:
    return value is not None and value is not False and value not in ((), [])


def _option(name: str) -> str:
    return _OPTIONS.get(name, name.replace("_", "-"))


def _refusal(name: str, way: Way, arguments: argparse.Namespace) -> str:
    option = str(arguments.parallel) if name == "parallel" else _option(name)
    if way in _SERVERS and name in _BETWEEN_SERVERS:
        return f"--{option} {_BETWEEN_SERVERS[name]}"
    if name in ("reference", "whole_softmax") and way in _FORMULAS:
        return f"--{option} has no effect here: a plan for many cards counts no reference"
    if name in _BELONGS:
        return f"--{option} {_BELONGS[name]}"
    if way is Way.PLAN and Way.LAYOUT in EFFECTS[name]:
        return f"--plan searches for --{option} itself; leave one of them out"
    if way is Way.PLAN:
        way = Way.LAYOUT
    if way is Way.COMMAND and name not in ("python", "transformers"):
        return f"--{option} is for a MODEL; a program sets this itself"
    if way in _SERVERS:
        way = Way.SERVER
    return way.value.format(option=option)


def _engine_refusal(engine: str, way: Way, arguments: argparse.Namespace) -> str:
    if way is Way.COMMAND:
        return f"--engine {engine} is for a MODEL; a program is run"
    if way is Way.PAGE:
        return f"--engine {engine} has no effect on the page of --html, which answers by laws"
    if way in _SERVERS:
        return f"--engine {engine} has no effect with --server, which answers by formula"
    name = next(name for name in _OF_FORMULAS if _is_given(getattr(arguments, name)))
    return f"--{_option(name)} needs --engine formula; --engine {engine} does not use it"


_OF_THE_TASK = (
    *("dtype", "optimizer", "batch", "seq", "image", "lengths", "checkpointing", "accumulate"),
    *("lora", "lora_targets", "quant", "offload", "attention", "compiles", "channels_last"),
    *("steps", "prompt", "checkpoint_layers", "decode", "requests", "start", "parallel"),
    *("ranks", "rank", "reference", "whole_softmax"),
)
"""Options that describe training or serving; each is also the name of a field of `Task`."""


def task_of(arguments: argparse.Namespace) -> Task | None:
    """Return the model and its training or serving from the options; None for a user's program."""
    from allocsim.fitting import GENERATORS, Task, lengths_of, model_of, usual_lengths

    words = arguments.words
    given = {name: getattr(arguments, name) for name in _OF_THE_TASK}
    given = {name: value for name, value in given.items() if value is not None}
    if not words:
        raise UsageError("fit needs a model, or a program after --: allocsim fit gpt2 --gpu T4")
    if len(words) > 1 or arguments.has_separator:
        return None
    if "lora_targets" in given:
        given["lora_targets"] = tuple(filter(None, given["lora_targets"].split(",")))
        if not given.get("lora"):
            raise UsageError("--lora-targets needs --lora RANK")
    if "lengths" in given:
        n_batches = given.get("requests", 2) if arguments.serve else given.get("steps", 4)
        n_batches *= 1 if arguments.serve else given.get("accumulate", 1)
        given["lengths"] = lengths_of(given["lengths"], given.get("batch", 1) * n_batches)
    if "checkpoint_layers" in given:
        given["checkpointing"] = True
    model = model_of(words[0])
    if model.name in GENERATORS and not arguments.train:
        _refuse_beside_images(model.name, given)
        return Task(model=model, is_training=False, **given)
    _refuse_option_of_other_mode(arguments, given)
    usual = usual_lengths(model, **{name: given[name] for name in ("decode",) if name in given})
    return Task(model=model, is_training=not arguments.serve, **(usual | given))


def _refuse_option_of_other_mode(arguments: argparse.Namespace, given: dict[str, Any]) -> None:
    training = {"seq", "optimizer", "checkpointing", "accumulate", "lora", "lora_targets", "steps"}
    training |= {"ranks", "rank", "image", "channels_last", "quant", "checkpoint_layers"}
    training |= {"reference", "whole_softmax"}
    serving = {"prompt", "decode", "requests"}
    wrong = sorted((training if arguments.serve else serving) & given.keys())
    if wrong:
        name, kind = wrong[0].replace("_", "-"), "training" if arguments.serve else "--serve"
        raise UsageError(f"--{name} applies to {kind} only")


def _refuse_beside_images(name: str, given: dict[str, Any]) -> None:
    wrong = sorted(given.keys() - {"dtype", "batch", "image", "quant", "offload"})
    if wrong:
        raise UsageError(f"--{_option(wrong[0])} has no effect on {name}, which generates images")


def gpus_of(arguments: argparse.Namespace) -> list[Gpu]:
    from allocsim.phantom import CARDS, Gpu, named_gpu

    names = arguments.gpus or []
    if arguments.device_memory is not None:
        if names:
            raise UsageError("--gpu and --device-memory both select the device; expected one")
        return [Gpu("a card of that size", arguments.device_memory)]
    if not names:
        raise UsageError('fit needs a card: --gpu "RTX 4090", or --device-memory 24GiB')
    if "all" in names:
        return list(CARDS.values())
    return list(dict.fromkeys(map(named_gpu, names)))
