"""Memory of training on many cards, computed by formula, as text and as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from allocsim.fitting import GpuCount, Planned, Sharded
from allocsim.fitting.formulas.training import (
    FUSED,
    ParallelLayout,
    RankPart,
    Training,
    TransformerShape,
)
from allocsim.phantom import Gpu
from allocsim.report.answer import Part, answer_of
from allocsim.report.layout import LABEL, WIDTH, exact_size, fields, paragraph, plural, row, table
from allocsim.units import GIB, format_size

_GROUPS = ("tensor", "pipeline", "data", "context", "expert")
_LAYOUT = (
    "tensor pipeline data context expert zero recompute sequence_parallel micro_batch seq "
    "virtual_stages=chunks"
)
_SHOWN = 6
_EXPLAINED = 0.05
"""Least share of allocated memory for which the arithmetic of a part, such as gradients, is shown.

JSON has the arithmetic of all parts.
"""
_VISIBLE = 100
"""Divisor: parts below 1/100 of the allocated memory are not shown."""


def document(
    training: Training, gpu: Gpu, found: Sharded | GpuCount, assumed: str = ""
) -> dict[str, Any]:
    """Return the JSON document of training on many cards; the parameters are those of `text`."""
    if isinstance(found, GpuCount):
        return _plan_document(training, gpu, found)
    return _document(found) | {
        "notes": [assumed] if assumed else [],
        "breakdown": {part.name: part.size for part in found.worst.parts},
        "stages": list(found.stages_bytes),
        "arithmetic": {part.name: part.arithmetic for part in found.worst.parts},
        "program": f"{found.training.name}, {_layout_text(found.training.layout)}",
    }


def text(training: Training, gpu: Gpu, found: Sharded | GpuCount, assumed: str = "") -> str:
    """Return the text of training on many cards.

    training: model, and how it is trained.
    found: memory of one layout (distribution over cards), or the layouts that --plan tried.
    assumed: sentence on assumed values that differ from the defaults of a run of the program; "" if
        there are none.
    """
    if isinstance(found, GpuCount):
        return _plan_text(training, gpu, found)
    worst, layout = found.worst, found.training.layout
    low, likely, high = map(format_size, found.reserved_bytes)
    stages = found.stages_bytes
    where = f"of {plural(layout.pipeline, 'pipeline stage', 'pipeline stages')}"
    stage = f"stage {worst.stage + 1} {where}, " if layout.pipeline > 1 else ""
    allocated = f"{exact_size(found.allocated_bytes)} on the worst rank: {stage}"
    held = row("Allocated", f"{allocated}{_moment(worst.moment)}")
    for each in worst.parts:
        if each.size * _VISIBLE >= found.allocated_bytes:
            held += _part(each, found.allocated_bytes)
    every = ", ".join(f"{size / GIB:.2f}" for size in stages)
    reserved = f"{low} to {high}, likely {likely}: with rounding and fragmentation"
    outside = " to ".join(map(format_size, found.outside_bytes))
    more = f" and NCCL with {plural(found.communicators, 'group', 'groups')} of ranks"
    outside += " for the CUDA context" + more * bool(found.communicators)
    what, model, precision, computed = _training_rows(training)
    parts = [
        Part(row("Verdict", found.headline())),
        Part(row("Assumed", assumed) if assumed else ()),
        Part(held),
        Part(row("By stage", f"{every} GiB allocated") if len(stages) > 1 else (), rank=2),
        Part(row("Reserved", reserved)),
        Part(row("Outside", outside), rank=3),
        Part(what, rank=1, starts=True),
        Part(model, rank=1),
        Part(precision, rank=4),
        Part(computed, rank=5),
    ]
    return str(answer_of(parts, "--json: every figure"))


def _moment(name: str) -> str:
    if name.startswith("backward of"):
        return f"in {name}"
    return f"at the {name}".replace("the backward's", "backward's")


def _part(each: RankPart, total: int) -> list[str]:
    share = each.size / max(total, 1)
    first = f"{format_size(each.size):>{LABEL + 10}} {share:5.0%}  "
    text = each.name + f": {each.arithmetic}" * (share >= _EXPLAINED)
    return textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=" " * (LABEL + 18))


def _training_rows(training: Training, layout: str = "") -> tuple[list[str], ...]:
    return (
        row("Training", f"{training.name}, {layout or _layout_text(training.layout)}"),
        row("Model", _shape_text(training.shape)),
        row("Precision", _precision_text(training)),
        row("Computed by", f"formula, {_practice_text(training)} (docs/reference/parallel.md)"),
    )


def _layout_text(layout: ParallelLayout) -> str:
    cards = plural(layout.ranks, "card", "cards")
    sizes = {name: getattr(layout, name) for name in _GROUPS}
    groups = [f"{name} parallel {size}" for name, size in sizes.items() if size > 1]
    what = [
        f"{layout.micro_batch} x {layout.seq:,} tokens on {cards}",
        *groups,
        *[f"{layout.chunks} interleaved chunks"] * (layout.chunks > 1),
        f"ZeRO {layout.zero}",
        f"recomputation {layout.recompute}",
    ]
    return ", ".join(what)


def _shape_text(shape: TransformerShape) -> str:
    experts = f", {shape.chosen} of {shape.experts} experts of {shape.expert_inner:,}"
    return (
        f"{shape.parameters:,} parameters: {shape.layers} layers of width {shape.width:,}, "
        f"{shape.heads} heads, {shape.kv_heads} of keys and values, MLP {shape.inner:,}"
        + experts * bool(shape.experts)
        + f", vocabulary {shape.vocabulary:,}"
    )


def _precision_text(training: Training) -> str:
    precision = training.precision
    return (
        f"{precision.weights} + {precision.gradients} + {precision.optimizer:g} bytes per "
        f"parameter for weights, gradients and optimizer; activations of {precision.compute} bytes"
    )


def _practice_text(training: Training) -> str:
    if training.practice == FUSED:
        return "fused kernels like Megatron with Transformer Engine"
    return "separate PyTorch operations"


def _document(found: Sharded) -> dict[str, Any]:
    low, likely, high = found.reserved_bytes
    outside = found.outside_bytes
    return {
        "fits": found.fits,
        "is_sure": found.fits is not None,
        **fields(found, "gpu=gpu.name device_memory=gpu.memory context_memory=gpu.context_memory"),
        "peak_reserved_bytes": likely,
        "reserved_range": [low, high],
        "peak_allocated_bytes": found.allocated_bytes,
        "needed_bytes": likely,
        "process_bytes": [low + outside[0], high + outside[1]],
        "spare_bytes": found.spare_bytes,
        "engine": "formula",
        **fields(found, "worst_stage=worst.stage moment=worst.moment ranks=training.layout.ranks"),
        "layout": fields(found.training.layout, _LAYOUT),
    }


def _plan_text(training: Training, gpu: Gpu, found: GpuCount) -> str:
    if found.fewest is None:
        why = f"none of {found.tried:,} layouts fits {gpu.name}"
        if not found.tried:
            why = f"no layout fits {gpu.name}: the part that every rank holds is too large"
        lines = row("Verdict", why)
        return "\n".join([*lines, "", *_model_lines(training)]) + "\n"
    best = found.choices[0]
    word = "is the fewest" if found.fewest == 1 else "are the fewest"
    lines = row(
        "Verdict",
        f"{found.fewest} x {gpu.name} {word}: {_layout_text(best.answer.training.layout)}",
    )
    answer = best.answer
    lines += row(
        "Memory",
        f"{format_size(answer.allocated_bytes)} allocated on the worst rank, likely "
        f"{format_size(answer.reserved_bytes[1])} reserved, {format_size(answer.spare_bytes)} to "
        "spare" + "; at the high end of the range it may not fit" * (not answer.fits),
    )
    lines += ["", *row("Choices", f"on {plural(found.fewest, 'card', 'cards')}, best "
                       "first")]  # fmt: skip
    lines += _rows(found.choices[:_SHOWN])
    if more := len(found.choices) - _SHOWN:
        lines += paragraph(f"and {more} more") if more > 0 else []
    if len(found.front) > 1:
        lines += ["", *row("Front", "more cards with less extra work")]
        lines += _rows(found.front)
    lines += ["", *_model_lines(training)]
    lines += row("Searched", f"{found.tried:,} layouts: tensor parallel up to 8, pipelines of any "
                 "depth, ZeRO 0 to 3, recomputation none or full")  # fmt: skip
    return "\n".join(lines) + "\n"


def _model_lines(training: Training) -> list[str]:
    sequences = f"sequences of {training.layout.seq:,} tokens"
    return [line for rows in _training_rows(training, sequences) for line in rows]


def _rows(planned: Sequence[Planned]) -> list[str]:
    rows: list[tuple[str, ...]] = [
        ("cards", "TP", "PP", "DP", "ZeRO", "recompute", "batch", "reserved", "spare", "work")
    ]
    for each in planned:
        layout = each.answer.training.layout
        rows.append((
            f"{each.cards}",
            *(f"{size}" for size in (layout.tensor, layout.pipeline, layout.data, layout.zero)),
            layout.recompute,
            f"{layout.micro_batch}",
            format_size(each.answer.reserved_bytes[1]),
            format_size(each.answer.spare_bytes),
            f"+{each.extra:.0%}",
        ))  # fmt: skip
    return ["  " + line for line in table(rows, (7, 4, 5, 6, 6, 11, 7, 12, 12, 7))]


def _plan_document(training: Training, gpu: Gpu, found: GpuCount) -> dict[str, Any]:
    return {
        "fits": found.fewest is not None,
        "fewest": found.fewest,
        "gpu": gpu.name,
        "device_memory": gpu.memory,
        "engine": "formula",
        "parameters": training.shape.parameters,
        "tried": found.tried,
        "choices": [_planned_document(each) for each in found.choices],
        "front": [_planned_document(each) for each in found.front],
    }


def _planned_document(planned: Planned) -> dict[str, Any]:
    return _document(planned.answer) | {"extra_work": round(planned.extra, 4)}
