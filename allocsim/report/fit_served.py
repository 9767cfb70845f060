"""Answer of `allocsim fit --server`: does a served model fit a card?  As text and as JSON.

An uncertain size is shown as a range; where the JSON has one number, it is the upper end.
"""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote
from typing import TYPE_CHECKING, Any

from allocsim.report.answer import Answer, Part, Tone, answer_of
from allocsim.report.layout import LABEL, fields, row, table
from allocsim.units import format_range, format_size

if TYPE_CHECKING:
    from allocsim.fitting import Served

NO_RUN: dict[str, Any] = {
    **dict.fromkeys(("peak_reserved_bytes_keeping_up", "peak_reserved_bytes_skewed")),
    **dict.fromkeys(("torch_version", "transformers", "conf", "oom", "helps")),
    "num_alloc_retries": 0,
    "seconds": 0.0,
}
"""JSON keys that have a value only if `fit` runs a program; here each has the value None or 0."""
COMMANDS = {
    "vllm": "vllm serve {} ",
    "sglang": "python -m sglang.launch_server --model-path {} ",
    "llama.cpp": "llama-server {} ",
}
"""Dictionary from a serving engine to its command; {} is the model, and options follow."""


def text(answers: Sequence[Served]) -> str:
    if len(answers) > 1:
        return _of_cards(answers)
    parts = [*_parts(answers[0]), Part(_reasons(answers[0]))]
    return "".join(f"{line}\n" for each in parts for line in ([""] * each.starts + [*each.lines]))


def screen(answers: Sequence[Served]) -> Answer:
    if len(answers) > 1:
        return Answer(tuple((line, Tone.PLAIN) for line in _of_cards(answers).splitlines()))
    return answer_of(_parts(answers[0]), "-v: the reason of each range; --json: for programs")


def _parts(found: Served) -> list[Part]:
    needs = found.needs
    needed = format_range(needs.low, needs.high)
    where = "on the card" if found.work.cards == 1 else "on each card"
    memory = row("Memory", f"{needed} {where}, with {needs.engine}:")
    for each in needs.parts:
        memory.append(f"{format_range(each.low, each.high):>{LABEL + 24}}  {each.name}")
    parts = [
        Part(row("Verdict", found.headline()), Tone.GOOD if found.fits else Tone.FAILURE),
        Part(memory),
    ]
    if needs.taken is not None:
        taken = f"{format_range(*needs.taken)} by its fraction of the card"
        parts.append(Part(row("Takes", taken), rank=2))
    if needs.room is not None:
        parts.append(Part(row("Room", f"for {tokens_of(needs.room)} tokens in that memory")))
    if needs.largest is not None:
        largest = needs.largest
        room = tokens_of(largest.room)
        text = f"{largest.option} {largest.value:g}"
        text += f" with {largest.beside}:" if largest.beside else ", with"
        text += f" room for {room} tokens"
        if largest.longest:
            text += "; needs" if largest.has_to_be_set else "; one request:"
            text += f" {largest.length} {largest.longest}" + " or less" * largest.has_to_be_set
        parts.append(Part(row("Largest safe", text)))
    host = [f"{format_range(each.low, each.high)} {each.name}" for each in needs.host if each.high]
    if host:
        parts.append(Part(row("Host", ", ".join(host))))
    if needs.paste:
        command = COMMANDS.get(needs.engine, "").format(_source(found))
        parts.append(Part(row("To paste", command + needs.paste), Tone.PASTE))
    elif needs.largest is not None:
        parts.append(Part(row("To paste", "nothing: this work does not fit for certain")))
    if needs.least:
        parts.append(Part(row("Least", f"{needs.least} for this work"), rank=3))
    parts.append(Part([*row("Model", _model(found)), *row("Work", _work(found))], starts=True))
    parts.append(Part([line for note in needs.notes for line in row("Note", note)], rank=1))
    return parts


def _source(found: Served) -> str:
    """Return the model as the engine's command line names it, such as "-m MODEL.gguf"."""
    address, weights, file = found.held.address, found.held.weights.name, found.work.logged.file
    if found.needs.engine != "llama.cpp":
        return address
    if not file and address.endswith(".gguf"):
        file = address
    if not file and "gguf" in address.lower():
        return f"-hf {address}:{weights}"
    return f"-m {quote(file or f'{found.held.name}-{weights}.gguf')}"


def tokens_of(room: tuple[int, int]) -> str:
    low, high = (f"{each:,}" for each in room)
    return low if low == high else f"{low} to {high}"


def _reasons(found: Served) -> list[str]:
    lines = []
    for each in found.needs.parts:
        if each.low != each.high and each.why:
            lines += row("Assumed", f"{each.name}: {each.why}")
    return lines + row("Source", found.needs.source)


def _model(found: Served) -> str:
    weights = found.held.weights
    return f"{found.held.name}, {weights.name}: {format_size(weights.size)} by {found.held.source}"


def _work(found: Served) -> str:
    work = found.work
    what = f"batch {work.batch} x {work.prompt:,} tokens and {work.decode:,} generated"
    return what if work.cards == 1 else f"{what}, each layer split over {work.cards} cards"


def _of_cards(answers: Sequence[Served]) -> str:
    rows: list[tuple[str, ...]] = [("card", "memory", "needs", "")]
    for found in answers:
        verdict = "fits" if found.fits else "may not" if found.may_fit else "does not"
        needed = format_range(found.needs.low, found.needs.high)
        rows.append((found.gpu.name, format_size(found.gpu.memory), needed, verdict))
    lines = table(rows, (30, 12, 26, 11))
    first = answers[0]
    lines += ["", *row("Model", _model(first)), *row("Work", _work(first))]
    chosen = [found.gpu.chosen for found in answers if found.gpu.chosen]
    for note in (*chosen, *first.held.notes):
        lines += row("Note", note)
    return "\n".join(lines) + "\n"


def document(answers: Sequence[Served]) -> dict[str, Any]:
    first = next((found for found in answers if found.fits), answers[0])
    cards = {"cards": [_document(found) for found in answers]} if len(answers) > 1 else {}
    return _document(first) | cards


def _document(found: Served) -> dict[str, Any]:
    needs = found.needs
    context = next(part for part in needs.parts if part.name == "CUDA context")
    largest = None
    if needs.largest is not None:
        keys = "option value room_tokens=room longest_request=longest beside has_to_be_set"
        largest = fields(needs.largest, keys)
    return NO_RUN | {
        **fields(found, "fits may_fit gpu=gpu.name device_memory=gpu.memory"),
        "context_memory": context.high,
        "peak_reserved_bytes": needs.high - context.high,
        "peak_allocated_bytes": needs.high - context.high,
        "needed_bytes": needs.high - context.high,
        "process_bytes": [needs.low, needs.high],
        "engine": "formula",
        "server": needs.engine,
        "notes": list(needs.notes),
        "breakdown": {part.name: part.high for part in needs.parts},
        "ranges": {part.name: [part.low, part.high] for part in needs.parts},
        "reasons": {part.name: part.why for part in needs.parts},
        "host": {part.name: [part.low, part.high] for part in needs.host},
        "taken_bytes": needs.taken and list(needs.taken),
        "room_tokens": needs.room and list(needs.room),
        "largest": largest,
        "paste": needs.paste or None,
        "least": needs.least or None,
        "tensor_parallel": found.work.cards,
        "weights": {"format": found.held.weights.name, "bytes": found.held.weights.size},
        "source": needs.source,
        "program": f"{needs.engine} {found.held.name}, {_work(found)}",
    }
