"""Options of `allocsim fit` for training on many cards, which is computed by formulas."""

from __future__ import annotations

import argparse
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from allocsim.cli.options import OUT_OF_MEMORY, Parser, UsageError, count
from allocsim.cli.output import say, write_report

if TYPE_CHECKING:
    from allocsim.fitting.formulas.training import (
        ParallelLayout,
        Precision,
        Training,
        TransformerShape,
    )
    from allocsim.phantom import Gpu

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
    """Answer `allocsim fit` by formulas, for one card or several; return the exit code."""
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
