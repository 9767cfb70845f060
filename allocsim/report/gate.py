"""Result of `allocsim gate`, a check of memory limits, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from allocsim.analysis.gate import Gate, LimitCheck, LineGrowth, Measured
from allocsim.report.layout import (
    WIDTH,
    and_more,
    clipped,
    fields,
    paragraph,
    plural,
    row,
    rows,
    with_status,
)
from allocsim.units import format_change, format_size

_ROWS = 9
_GROWN = "{:>12} {:>11} {:>11}  "
_HOLDS = "{:>12}  "
_MEASURED = (
    "entry=first counts_held conf torch_version peak_allocated_bytes peak_requested_bytes "
    "num_device_alloc=driver_calls fragmentation"
)
_NAMES = {"driver_calls": "driver calls"}


def text(found: Gate, count: int | None = None) -> str:
    """Return the text of `allocsim gate`.

    count: number of lines of code to list; 0 for all, None for as many as fit one screen.
    """
    measured = found.measured
    lines = row("Verdict", _verdict(found))
    lines += row("Recording", f"{measured.path}, {_part(measured)}")
    lines += rows("Checks", [_check(check) for check in found.checks])
    lines += _driver(measured)
    if measured.held.kept_bytes or measured.held.left_bytes:
        lines += row("Held before", _held(measured))
    lines += ["", *_owners(found, _ROWS if count is None else count)]
    for note in measured.notes:
        lines += paragraph(f"note: {note}", 0)
    return "\n".join(lines) + "\n"


def _verdict(found: Gate) -> str:
    if found.passed:
        size = format_size(found.measured.peak_reserved_bytes)
        return f"passed: {size} reserved at the peak"
    failed = [check for check in found.checks if not check.passed]
    more = f", and {plural(len(failed) - 1, 'other check')}" if len(failed) > 1 else ""
    return f"failed: {_excess(failed[0])}{more}"


def _excess(check: LimitCheck) -> str:
    name = _NAMES.get(check.what, check.what)
    if check.what == "fragmentation":
        return f"{name} is {check.value:.1%}, above the limit of {check.limit:.1%}"
    if check.what == "driver_calls":
        return f"{int(check.value):,} {name}, above the limit of {int(check.limit):,}"
    if check.baseline is None:
        over = format_size(int(check.value - check.limit))
        return f"{name} memory is {over} above the limit of {format_size(int(check.limit))}"
    change = int(check.value) - check.baseline
    share = f" ({change / check.baseline:+.1%})" if check.baseline else ""
    return f"{name} memory grew by {format_size(change)}{share}"


def _part(measured: Measured) -> str:
    if measured.at is None:
        return "the whole recording, in an empty allocator"
    return f"from {' '.join(measured.at)} (entry {measured.first:,}) on, in an empty allocator"


def _check(check: LimitCheck) -> str:
    name = _NAMES.get(check.what, check.what)
    if check.what == "fragmentation":
        value, limit = f"{check.value:.1%}", f"{check.limit:.1%}"
    elif check.what == "driver_calls":
        value, limit = f"{int(check.value):,}", f"{int(check.limit):,}"
    else:
        value, limit = format_size(int(check.value)), format_size(int(check.limit))
    before = f", baseline {format_size(check.baseline)}" if check.baseline is not None else ""
    state = "holds" if check.passed else "FAILS"
    return f"{state}  {name} {value}, limit {limit}{before}"


def _driver(measured: Measured) -> list[str]:
    calls = f"{plural(measured.driver_calls, 'call')} for memory"
    share = f"{measured.fragmentation:.1%} of reserved memory is not allocated"
    return row("Driver", f"{calls}; {share}")


def _held(measured: Measured) -> str:
    kept, left = measured.held.kept_bytes, measured.held.left_bytes
    counted = "counted" if measured.counts_held else "not counted"
    parts = [f"{format_size(kept)} kept to the end, {counted}"] * bool(kept)
    parts += [f"{format_size(left)} freed later, not counted"] * bool(left)
    return "; ".join(parts)


def _owners(found: Gate, count: int) -> Iterator[str]:
    changed = [each for each in found.growth if each.bytes]
    if found.baseline is not None and changed:
        yield _GROWN.format("change", "baseline", "now") + "line"
        shown = changed[: count or None]
        yield from map(_growth, shown)
        if rest := changed[len(shown) :]:
            more = format_change(sum(each.bytes for each in rest))
            yield f"{_GROWN.format(more, '', '')}{and_more(len(rest))}"
        return
    if found.baseline is not None:
        yield "Every line requests the same memory as in the baseline."
        return
    held = list(found.measured.owners.items())
    yield _HOLDS.format("at the peak") + "line"
    for name, size in held[: count or None]:
        figures = _HOLDS.format(format_size(size))
        yield figures + clipped(name, WIDTH - len(figures))
    if count and (behind := held[count:]):
        size = sum(bytes_ for _, bytes_ in behind)
        yield f"{_HOLDS.format(format_size(size))}{and_more(len(behind))}"


def _growth(each: LineGrowth) -> str:
    before = format_size(each.before) if each.was else ""
    now = format_size(each.now) if each.owner else ""
    figures = _GROWN.format(format_change(each.bytes), before, now)
    return figures + clipped(with_status(each.status, each.owner or each.was), WIDTH - len(figures))


def document(found: Gate) -> dict[str, Any]:
    measured = found.measured
    return {
        "passed": found.passed,
        "peak_reserved_bytes": measured.peak_reserved_bytes,
        **fields(found, "baseline_bytes=baseline.peak_reserved_bytes tolerance"),
        "grown": [
            fields(each, "owner was status bytes baseline_bytes=before now_bytes=now")
            for each in found.grown
        ],
        **fields(measured, "path device"),
        "from": None if measured.at is None else " ".join(measured.at),
        **fields(measured, _MEASURED),
        "held": asdict(measured.held),
        "checks": [{**asdict(check), "passed": check.passed} for check in found.checks],
        "owners": [{"owner": name, "bytes": size} for name, size in measured.owners.items()],
        "notes": list(measured.notes),
    }
