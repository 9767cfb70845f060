"""Edits of a recorded program, read from texts such as "empty-cache after step 2"."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from allocsim.core import MAX_REQUEST
from allocsim.editing.program import Program
from allocsim.errors import ConfigError
from allocsim.simulation import StepKind
from allocsim.units import format_size, parse_size

_SAME_REQUESTS = "all other requests stay the same"
_SAME_STEPS = "each step requests the same as in its recorded place"
_NAME = 1 << 61
"""Number that identifies the block of the edit "preallocate"; recorded addresses are smaller."""


@dataclass(frozen=True, slots=True)
class Edit:
    """One change of a program.

    text: the edit as the user gives it.
    code: line of Python, or an instruction, for the change in the user's program.
    assumes: assumption about the edited program, as a clause that follows "it assumes that".
    apply: function from the recorded program to the changed program.
    """

    text: str
    code: str
    assumes: str
    apply: Callable[[Program], Program]


def parse_edit(text: str) -> Edit:
    words = " ".join(text.split())
    for _, pattern, make in _FORMS:
        found = re.fullmatch(pattern, words, re.IGNORECASE)
        if found is not None:
            return replace(make(found), text=words)
    known = "; ".join(EDIT_FORMS)
    raise ConfigError(f"edit {text[:80]!r} is unknown; expected one of: {known}")


_EMPTY = "torch.cuda.empty_cache()"


def _empty_at(found: re.Match[str]) -> Edit:
    entry = int(found[1])

    def apply(program: Program) -> Program:
        last = len(program.frames) - 1
        if entry > last:
            raise ConfigError(f"entry {entry} does not exist; expected 0 to {last}")
        return program.with_calls([int(np.argmax(program.steps.entry >= entry))])

    return Edit("", f"{_EMPTY}  # before the request at entry {entry}", _SAME_REQUESTS, apply)


def _empty_after(found: re.Match[str]) -> Edit:
    number = int(found[1])

    def apply(program: Program) -> Program:
        program.position_of(number)
        ends = zip(program.numbers, program.ends(), strict=True)
        return program.with_calls([end for each, end in ends if each == number])

    return Edit("", f"{_EMPTY}  # at the end of step {number}", _SAME_REQUESTS, apply)


def _empty_every(found: re.Match[str]) -> Edit:
    stride = int(found[1])
    if not stride:
        raise ConfigError(f"edit {found[0]!r}: expected 1 step or more between the calls")

    def apply(program: Program) -> Program:
        return program.with_calls(program.ends()[stride - 1 :: stride])

    code = f"if step % {stride} == 0: {_EMPTY}" if stride > 1 else _EMPTY
    return Edit("", f"{code}  # at the end of each step", _SAME_REQUESTS, apply)


def _empty_before(found: re.Match[str]) -> Edit:
    phase = found[1].lower()

    def apply(program: Program) -> Program:
        return program.with_calls(program.begins_of(phase))

    before = {"forward": "the forward pass", "backward": "loss.backward()"}
    code = f"{_EMPTY}  # before {before.get(phase, 'optimizer.step()')}"
    return Edit("", code, _SAME_REQUESTS, apply)


def _preallocate(found: re.Match[str]) -> Edit:
    try:
        size = parse_size(found[1])
    except ValueError as error:
        raise ConfigError(f"preallocate {found[1]}: {error}") from None
    if not 0 < size < MAX_REQUEST:
        raise ConfigError(f"edit {found[0]!r}: expected a size from 1 byte to less than 1 EiB")

    def apply(program: Program) -> Program:
        kinds = (StepKind.ALLOC, StepKind.FREE)
        return program.beginning_with([(int(kind), 0, _NAME, size, 0) for kind in kinds])

    code = f"del_me = torch.empty({size}, dtype=torch.uint8, device='cuda'); del del_me"
    assumes = f"the program begins with this request of {format_size(size)}, and {_SAME_REQUESTS}"
    return Edit("", code, assumes, apply)


def _largest_first(_: re.Match[str]) -> Edit:
    def apply(program: Program) -> Program:
        peaks = program.peaks()
        order = list(range(len(peaks)))
        largest = max(order, key=lambda section: peaks[section], default=0)
        return program.reordered([largest, *(each for each in order if each != largest)])

    return Edit("", "run the step with the longest batch first", _SAME_STEPS, apply)


def _repeat(found: re.Match[str]) -> Edit:
    first, last, times = int(found[1]), int(found[2] or found[1]), int(found[3])
    if last < first or not times:
        raise ConfigError(f"edit {found[0]!r} repeats nothing; expected steps A..B with A <= B")

    def apply(program: Program) -> Program:
        begin, end = program.position_of(first), program.position_of(last) + 1
        block, behind = list(range(begin, end)), range(end, len(program.starts))
        return program.reordered([*range(begin), *block * times, *behind])

    return Edit("", f"run steps {first} to {last} {times} times", _SAME_STEPS, apply)


def _drop(found: re.Match[str]) -> Edit:
    number = int(found[1])

    def apply(program: Program) -> Program:
        dropped = program.position_of(number)
        return program.reordered([at for at in range(len(program.starts)) if at != dropped])

    return Edit("", f"leave out step {number}", _SAME_STEPS, apply)


def _one_stream(_: re.Match[str]) -> Edit:
    def apply(program: Program) -> Program:
        steps = _freed_early(program).steps
        return replace(program, steps=replace(steps, stream=np.zeros_like(steps.stream)))

    code = "use the default stream only: no torch.cuda.stream(), no record_stream()"
    return Edit("", code, _SAME_REQUESTS, apply)


def _free_early(_: re.Match[str]) -> Edit:
    code = "leave out record_stream(), and wait for the other stream before the last use instead"
    return Edit("", code, _SAME_REQUESTS, _freed_early)


def _freed_early(program: Program) -> Program:
    steps, starts = program.steps, np.array(program.starts, dtype=np.int64)
    is_request = steps.kind == StepKind.FREE_REQUEST
    # A completed free whose request is not recorded stays: it was requested before the first entry.
    is_left_out = (steps.kind == StepKind.FREE_COMPLETE) & np.isin(
        steps.addr, steps.addr[is_request]
    )
    kind = np.where(is_request, np.uint8(StepKind.FREE), steps.kind)
    kept = np.flatnonzero(~is_left_out)
    moved = starts - np.searchsorted(np.flatnonzero(is_left_out), starts)
    changed = replace(steps, kind=kind).taken(kept)
    return replace(program, steps=changed, starts=tuple(moved.tolist()))


def _refuse_split(found: re.Match[str]) -> Edit:
    raise ConfigError(
        f"edit {found[0]!r}: one recording does not have the sizes of another batch; record two "
        "or more batch sizes and run allocsim scale"
    )


_FORMS: tuple[tuple[str, str, Callable[[re.Match[str]], Edit]], ...] = (
    ("empty-cache at ENTRY", r"empty-cache at (?:entry )?(\d+)", _empty_at),
    ("empty-cache after step N", r"empty-cache after step (\d+)", _empty_after),
    ("empty-cache every N steps", r"empty-cache every (\d+) steps?", _empty_every),
    ("empty-cache before phase forward|backward|optimizer",
     r"empty-cache before phase (forward|backward|optimizer)", _empty_before),
    ("preallocate SIZE", r"preallocate (\S+(?: ?[KMGT]i?B)?)(?: at start)?", _preallocate),
    ("largest step first", r"largest step first", _largest_first),
    ("repeat steps A..B x N", r"repeat steps? (\d+)(?:\.\.(\d+))? x ?(\d+)", _repeat),
    ("drop step N", r"drop step (\d+)", _drop),
    ("one stream", r"one stream", _one_stream),
    ("free early", r"free early", _free_early),
    ("", r"split batch in (\d+)", _refuse_split),
)  # fmt: skip
"""Tuples (form of an edit's text, regular expression for it, function that makes the edit).

The form is "" for an edit that is always refused, such as "split batch in 2".
"""

EDIT_FORMS = tuple(form for form, _, _ in _FORMS if form)
"""Forms of the texts that `parse_edit` accepts, such as "empty-cache after step N"."""
