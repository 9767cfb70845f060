"""Result of `allocsim colocate`, several programs on one card, as short answer, text and JSON."""

from __future__ import annotations

from typing import Any

from allocsim._repr import printable
from allocsim.analysis.colocate import Colocation, Failure, PhaseRun, Program, Way
from allocsim.report.answer import Answer, Part, Tone, answer_of
from allocsim.report.layout import (
    exact_size,
    fields,
    paragraph,
    plural,
    row,
    rows,
    shortened,
    table,
)
from allocsim.units import format_size

_PHASES = 4
_SHOWN = 3
_WIDTHS = (20, 13, 13, 13, 13, 8)
_HEADS = ("phase", "card's peak", "own peak", "kept after", "released", "retries")
_WAYS = (36, 13, 15)
_PATH = 60


def screen(found: Colocation) -> Answer:
    tone = Tone.GOOD if found.fits else Tone.FAILURE
    parts = [
        Part(_verdict(found), tone),
        Part(_peak(found)),
        Part(_smallest(found)),
        Part(rows("Programs", _programs(found.programs[:_SHOWN])), rank=4),
        *_phase_table(found, _PHASES),
        Part(_ways(found), rank=1, starts=True),
        *(Part(row("Note", note), rank=2) for note in found.notes),
    ]
    return answer_of(parts, "-v: every phase and figure; --json: the same for programs")


def text(found: Colocation) -> str:
    run = found.run
    memory = "unlimited" if run.memory is None else exact_size(run.memory)
    lines = [*_verdict(found), *row("Card", memory), *_peak(found), *_smallest(found)]
    if found.any_order is not None:
        text = f"succeeds on {exact_size(found.any_order)}: each program's own peak"
        lines += row("Any order", text)
    lines += rows("Programs", _programs(found.programs, in_full=True))
    lines += [line for each in _phase_table(found, len(found.phases)) for line in ("", *each.lines)]
    if found.ways:
        lines += ["", *_ways(found)]
    if run.failure is not None:
        lines += ["", *_held(found, run.failure)]
        if run.failure.message:
            lines += paragraph(run.failure.message, 0)
    for note in found.notes:
        lines += row("Note", note)
    return "\n".join(lines) + "\n"


def _verdict(found: Colocation) -> list[str]:
    run, failure = found.run, found.run.failure
    size = "" if run.memory is None else f" on {format_size(run.memory)}"
    if failure is None:
        what = f"it fits{size}" if size else "no limit given (--device-memory)"
        return row("Verdict", f"{what}: every request succeeds")
    wanted, free = format_size(failure.wanted), format_size(failure.free)
    where = _place(found, failure.phase)
    if failure.entry is None:
        text = f"out of memory{size} as {where} begins: it takes {wanted}"
    else:
        text = f"out of memory{size} in {where}, entry {failure.entry:,}: {wanted} requested"
    return row("Verdict", f"{text}, {free} free")


def _place(found: Colocation, phase: int) -> str:
    this = found.phases[phase]
    letter = found.programs[this.program].letter
    if found.by_time:
        return f"program {letter}"
    return f"phase {phase + 1} ({this.name}, program {letter})"


def _peak(found: Colocation) -> list[str]:
    run = found.run
    text = f"{format_size(run.peak)} of the card in {_place(found, run.peak_phase)}"
    if not found.threads and run.held_at_peak:
        text += f": {_by_program(found, run.held_at_peak)}"
    return row("Peak", text)


def _by_program(found: Colocation, held: tuple[int, ...]) -> str:
    pairs = zip(found.programs, held, strict=True)
    return ", ".join(f"{each.letter} {format_size(size)}" for each, size in pairs)


def _smallest(found: Colocation) -> list[str]:
    if not found.ways:
        return []
    if found.smallest is None:
        return row("Smallest card", "unknown: a request fails even on an unlimited card")
    return row("Smallest card", f"{format_size(found.smallest)}, 2 MiB less fails")


def _held(found: Colocation, failure: Failure) -> list[str]:
    held = format_size(sum(failure.held))
    by = "" if found.threads else f": {_by_program(found, failure.held)}"
    text = f"{held} of the card{by}; {exact_size(failure.needed)} would have served it"
    return row("At the error", text)


def _programs(programs: tuple[Program, ...], *, in_full: bool = False) -> list[str]:
    texts = []
    for each in programs:
        text = f"{each.letter}  {shortened(printable(each.path), _PATH)}"
        if in_full:
            context = format_size(each.context) if each.has_context else "unknown"
            conf = each.setting.conf or "the defaults"
            text += f", PyTorch {each.prepared.release.version}, {conf}, CUDA context {context}"
        texts.append(text)
    return texts


def _phase_table(found: Colocation, most: int) -> list[Part]:
    runs = found.run.phases
    first = max(len(runs) - most, 0) if not found.fits else 0
    shown = runs[first : first + most]
    lines = table([_HEADS], _WIDTHS)
    lines += table([_cells(found, each) for each in shown], _WIDTHS)
    hidden = len(runs) - len(shown)
    if hidden:
        lines.append(f"… and {plural(hidden, 'more phase')} (-v)")
    later = len(found.phases) - len(runs)
    if later:
        lines.append(f"{plural(later, 'phase')} not reached")
    return [Part(lines, rank=3, starts=True)]


def _cells(found: Colocation, run: PhaseRun) -> tuple[str, ...]:
    letter = found.programs[run.phase.program].letter
    name = run.phase.name if run.phase.name == letter else f"{run.phase.name} ({letter})"
    sizes = (run.peak, run.own_peak, run.kept, run.released)
    return name, *map(format_size, sizes), f"{run.retries:,}" if run.retries else ""


def _ways(found: Colocation) -> list[str]:
    if not found.ways:
        return []
    return table([("", "peak", "smallest card"), *map(_way, found.ways)], _WAYS)


def _way(way: Way) -> tuple[str, str, str]:
    peak, smallest = (
        "fails" if size is None else format_size(size) for size in (way.peak, way.smallest)
    )
    return way.name, peak, smallest


_PHASE = (
    "peak_bytes=peak own_peak_bytes=own_peak kept_bytes=kept released_bytes=released "
    "woken_bytes=woken host_copy_bytes=host_copy num_alloc_retries=retries"
)
_FAILURE = (
    "phase entry wanted_bytes=wanted free_bytes=free held_bytes=held needed_device_bytes=needed "
    "message"
)


def document(found: Colocation) -> dict[str, Any]:
    run = found.run
    letters = [each.letter for each in found.programs]
    return {
        "fits": found.fits,
        "device_memory": run.memory,
        **fields(found, "is_threads=threads is_by_time=by_time"),
        **fields(run, "peak_bytes=peak peak_phase peak_entry held_at_peak"),
        **fields(found, "smallest_device_bytes=smallest any_order_bytes=any_order"),
        "failure": None if run.failure is None else fields(run.failure, _FAILURE),
        "programs": [
            {
                **fields(each, "letter path torch_version=prepared.release.version"),
                "conf": each.setting.conf,
                "context_bytes": each.context if each.has_context else None,
            }
            for each in found.programs
        ],
        "phases": [
            {
                "name": each.phase.name,
                "program": letters[each.phase.program],
                "sleep": str(each.phase.sleep),
                **fields(each, _PHASE),
            }
            for each in run.phases
        ],
        "ways": [
            fields(way, "name peak_bytes=peak smallest_device_bytes=smallest") for way in found.ways
        ],
        "notes": list(found.notes),
    }
