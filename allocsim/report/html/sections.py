"""Sections of an HTML report without scripts: the contents of its charts as words and tables."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from allocsim.analysis.explain import KINDS, Blocker, DeviceExplanation, Shortage
from allocsim.analysis.picture import Picture, WhatIf
from allocsim.metrics import extremes_of
from allocsim.report.answer import peak_text
from allocsim.report.explain import CAUSES, blockers_text, cause_sentence, code_text
from allocsim.report.html.embedding import SERIES
from allocsim.report.html.markup import (
    definition_list,
    moment_link,
    sizes_table,
    sparkline,
    table,
    text,
)
from allocsim.report.layout import exact_size, known_text, plural, unproved, when
from allocsim.report.packing import SEGMENT_HEADS, segment_cells
from allocsim.report.replay import least_and_most
from allocsim.simulation import Parting
from allocsim.units import format_range, format_size

_STRETCHES = 40
_SHOWN_ROWS = 60
_SHOWN_OOMS = 20
_SHOWN_BLOCKERS = 30


def overview(picture: Picture) -> str:
    """Return the HTML of a list: name of the recording, settings, peaks and driver calls."""
    run, device = picture.run, picture.device_run
    memory = "unknown" if device.device_memory is None else exact_size(device.device_memory)
    fidelity = device.fidelity
    proof = "none: these are not the recorded settings, so there is nothing to compare with"
    if fidelity is not None and not fidelity.is_compared:
        proof = "none: the file holds requests alone, so there is nothing to compare with"
    elif fidelity is not None:
        proof = (
            f"{fidelity.entries_matched:,} of {fidelity.entries:,} entries and "
            f"{fidelity.addresses_matched:,} of {fidelity.allocations:,} addresses as "
            "recorded"
        )
    peak, curve = device.peak, picture.curve
    first = f"{max(peak.entry, 0):,}"
    return definition_list(
        [
            ("Recording", run.path.rsplit("/", 1)[-1]),
            ("Entries", f"{device.entries:,} of device {device.device}"),
            ("Settings", run.conf or "none: PyTorch's defaults"),
            ("PyTorch", run.torch_version),
            ("Device memory", memory),
            ("Proof", proof),
            ("Peak reserved", f"{exact_size(device.peak_reserved_bytes)}, entry {first}"),
            ("Peak allocated", exact_size(device.peak_allocated_bytes)),
            ("Ideal peak", exact_size(int(curve.ideal[-1]))),
            ("Idle", "; ".join(least_and_most(device)) or "0 bytes"),
            ("Retries", f"{device.stats['num_alloc_retries']:,}"),
            (
                "Driver calls",
                f"{len(curve.driver_takes):,} took memory, "
                f"{len(curve.driver_gives):,} gave it back",
            ),
            ("Out of memory", plural(len(device.ooms), "error")),
        ]
    )


def memory_table(picture: Picture) -> str:
    """Return a table of memory: lowest and highest bytes in each of up to 40 ranges of entries."""
    curve, n = picture.curve, len(picture.curve)
    step = max(1, -(-n // _STRETCHES))
    columns = [extremes_of(getattr(curve, name), step) for name in SERIES]
    rows = []
    for i, start in enumerate(range(0, n, step)):
        cells = [format_range(int(c.low[i]), int(c.high[i])) for c in columns]
        end = min(start + step, n) - 1
        words = f"{start:,}" if start == end else f"{start:,} to {end:,}"
        entries = moment_link(end, words)
        rows.append([entries, *map(text, cells)])
    of_each = f", lowest to highest of every {step:,} entries" if step > 1 else ""
    return table(f"Memory after each entry{of_each}", ("entries", *SERIES), rows)


def segments_table(picture: Picture) -> str:
    """Return a table of the segments at the peak of reserved memory.

    Segments of one pool that are equal in all columns (size, allocated, free, ...) share a row.
    """
    instant = picture.at()
    alike: dict[tuple[str, ...], list[int]] = {}
    for segment in sorted(instant.segments, key=lambda s: (-s.total_size, s.address)):
        alike.setdefault(segment_cells(segment), []).append(segment.address)
    rows = [
        [text(hex(addresses[0])), text(f"{len(addresses):,}"), *map(text, cells)]
        for cells, addresses in alike.items()
    ]
    hidden = sum(len(addresses) for addresses in list(alike.values())[_SHOWN_ROWS:])
    more = f"; not listed: {plural(hidden, 'segment')}" if hidden else ""
    return table(
        f"Segments at the peak of reserved memory, {when(instant)}{more}",
        ("segment", "number", *SEGMENT_HEADS),
        rows[:_SHOWN_ROWS],
        ends_in_words=True,
    )


def ooms_section(
    shortages: Sequence[Shortage],
    explanation: DeviceExplanation | None,
    parting: Parting | None = None,
) -> str:
    """Return the HTML of each out-of-memory error: cause, memory in use, blocks to be freed."""
    if not shortages:
        return f"<p>{unproved(parting).capitalize()}No request failed.</p>\n"
    advice: Sequence[Sequence[str]] = () if explanation is None else explanation.advice
    parts = []
    if (hidden := len(shortages) - _SHOWN_OOMS) > 0:
        parts.append(f"<p>Not listed: {plural(hidden, 'earlier error')}.</p>\n")
    for i, shortage in list(enumerate(shortages))[-_SHOWN_OOMS:]:
        parts.append(_oom(shortage, advice[i] if i < len(advice) else (), parting))
    return "".join(parts)


def _oom(shortage: Shortage, advice: Sequence[str], parting: Parting | None) -> str:
    oom = shortage.oom
    parts = [
        f"<article><h3>Entry {oom.entry:,}: {text(shortage.cause.replace('_', ' '))}, "
        f"{format_size(shortage.tried_bytes)} tried</h3>\n"
        f"<p>{moment_link(oom.entry, f'Show entry {oom.entry:,}', is_button=True)}</p>\n",
        definition_list(
            [
                ("Cause", unproved(parting, oom.entry) + CAUSES[shortage.cause]),
                ("Because", cause_sentence(shortage)),
                ("Code", code_text(shortage.code)),
                ("Known", known_text(oom)),
                *([("PyTorch's message", oom.message)] if oom.message else []),
                *(("Advice", sentence) for sentence in advice),
            ]
        ),
    ]
    if shortage.findings is not None:
        kinds = shortage.findings.kinds
        named = {KINDS[kind]: size for kind, size in kinds.items() if size}
        uses = sizes_table("Use of the device's memory", named, sum(kinds.values()))
        parts += [uses, _blockers(shortage)]
    return "".join(parts) + "</article>\n"


def _blockers(shortage: Shortage) -> str:
    blockers = None if shortage.findings is None else shortage.findings.blockers
    found = "" if blockers is None else blockers_text(blockers)
    if not found:
        return "<p>In the way: no live block.</p>\n"
    hidden = len(shortage.blockers) - _SHOWN_BLOCKERS
    more = f". {plural(hidden, 'smaller one')} not listed" if hidden > 0 else ""
    heads = ("block", "size", "age (entries)", "allocated at entry", "by")
    cells = map(_blocker, shortage.blockers[:_SHOWN_BLOCKERS])
    return table(f"In the way: {found}{more}", heads, cells, ends_in_words=True)


def _blocker(blocker: Blocker) -> list[str]:
    address = text(hex(blocker.address))
    made = text("before the recording")
    if blocker.entry is not None:
        made = moment_link(blocker.entry, f"{blocker.entry:,}")
        address += (
            f' <button type="button" class="js" data-block="{blocker.entry}">show<span '
            f'class="unseen"> block {address} on the map</span></button>'
        )
    age = "older" if blocker.age is None else f"{blocker.age:,}"
    code = "no frames recorded" if blocker.code is None else str(blocker.code)
    size = format_size(blocker.size)
    return [address, text(size), text(age), made, text(code)]


def what_if_section(
    runs: Sequence[WhatIf], explanation: DeviceExplanation | None, *, is_proved: bool = True
) -> str:
    """Return a table of replays under other settings, each with a curve of reserved memory.

    runs: replay that the page shows, followed by the replays under other settings.
    explanation: remedies and recommended setting; None if no other settings were tried.
    is_proved: False if the replay under the recorded settings differs from the recording.
    """
    if not runs:
        return (
            "<p>Other settings were not replayed; <code>--what-if</code> replays the usual ones, "
            "<code>--try CONF</code> one.</p>\n"
        )
    top = max(int(np.max(run.reserved.high, initial=1)) for run in runs)
    length = max(len(run.reserved.high) for run in runs)
    rows = []
    for i, run in enumerate(runs):
        trial = run.trial
        conf = text(trial.conf or "PyTorch's defaults")
        figures = (
            peak_text(trial),
            f"{trial.num_alloc_retries:,}",
            f"{trial.num_device_alloc + trial.num_device_free:,}",
        )
        cells = ("no request failed", *figures)
        if trial.oom_entry is not None:
            # A run that ended early may need more than it reserved until then.
            cells = (f"out of memory at entry {trial.oom_entry:,}", "-", "-", "-")
        name = conf if i else f"{conf} <small>(this page)</small>"
        rows.append([name, *map(text, cells), sparkline(run.reserved, top, length)])
    unproved = "" if is_proved else "Unproved, because the replay differs from the recorded run. "
    caption = f"{unproved}One replay each. Lines: reserved memory over the run, from 0 to "
    caption += format_size(top)
    if (step := runs[0].reserved.step) > 1:
        caption += f"; the highest of every {step:,} entries"
    heads = ("setting", "outcome", "peak reserved", "retries", "driver calls", "reserved memory")
    return table(caption, heads, rows, ends_in_words=True) + _remedies(explanation)


def _remedies(explanation: DeviceExplanation | None) -> str:
    sizes = [] if explanation is None else explanation.remedies
    return "".join(
        f"<p>With {text(each.conf or 'the defaults')} a device of "
        f"{text(format_size(each.device_memory))} is the smallest on which no request fails.</p>\n"
        for each in sizes
        if each.kind == "device_memory"
    )
