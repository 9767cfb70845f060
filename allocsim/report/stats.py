"""Summary of a recording, as text (ten lines for one device) and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from allocsim._repr import printable
from allocsim.analysis.stats import DeviceSummary, Stats
from allocsim.recording import ROWS
from allocsim.report.layout import WIDTH, fields, plural, row
from allocsim.units import format_size

_LABEL = 12
_UNLESS_EMPTY = "packing=form.packing torch_version device_name device_memory command"
_EPOCH_US = 946_684_800_000_000
"""Year 2000 in microseconds since 1970; smaller times are simulated, not from a clock."""
_BEGINS = {
    "empty": "from an empty device",
    "state": "a state without a history",
    "requests": "requests and frees only",
    "unsound": "the history contradicts the state: see allocsim lint",
}


def text(found: Stats) -> str:
    lines = [*_about_file(found)]
    for device in found.devices:
        if len(found.devices) > 1:
            lines += ["", *row("Device", f"{device.device:,}", _LABEL)]
        lines += _about_device(device)
    lines += row("Stacks", _stacks(found), _LABEL)
    return "\n".join(lines) + "\n"


def _about_file(found: Stats) -> Iterator[str]:
    form = "no file" if found.form is None else f"{format_size(found.form.size)}, {found.form}"
    room = WIDTH - _LABEL - len(form) - 2
    path = printable(found.path)
    yield from row(
        "File", f"{path if len(path) <= room else '…' + path[1 - room :]}, {form}", _LABEL
    )
    if found.form is not None:
        yield from row("SHA-256", found.form.sha256, _LABEL)
    conf = "settings not recorded" if found.conf is None else found.conf or "default settings"
    yield from row("Written by", f"{_writer(found)}; {conf}", _LABEL)


def _writer(found: Stats) -> str:
    if not found.torch_version:
        if any(device.begins == "requests" for device in found.devices):
            return "rows of requests" if found.layout == ROWS else f"a {found.layout}"
        if not found.releases:
            return "no release of PyTorch writes such fields"
        first, *_, last = (*found.releases, found.releases[-1])
        return f"PyTorch {first}" if first == last else f"PyTorch {first} to {last}"
    on = found.device_name or "a device without a name"
    phantom = ", a phantom" if found.is_phantom else ""
    return f"PyTorch {found.torch_version} on {on}{phantom}"


def _about_device(device: DeviceSummary) -> Iterator[str]:
    counts = sorted(device.actions.items(), key=lambda item: -item[1])
    actions = ", ".join(f"{n:,} {action}" for action, n in counts)
    yield from row("Entries", f"{device.entries:,}{f': {actions}' if actions else ''}", _LABEL)
    yield from row("History", f"{_begins(device)}; {_time(device)}", _LABEL)
    if device.peak_requested_bytes is None:
        yield from row("Peak", "unknown without a consistent history", _LABEL)
    elif device.peak_reserved_bytes is None:
        yield from row("Peak", f"{format_size(device.peak_requested_bytes)} requested", _LABEL)
    else:
        yield from row(
            "Peak",
            f"{format_size(device.peak_reserved_bytes)} reserved, "
            f"{format_size(device.peak_requested_bytes)} requested",
            _LABEL,
        )
    if device.begins == "requests":
        return
    held = (
        f"{format_size(device.allocated_bytes)} in {plural(device.blocks, 'block')}",
        f"{format_size(device.reserved_bytes)} in {plural(device.segments, 'segment')}",
        f"{plural(device.streams, 'stream')}, {plural(device.pools, 'pool')}",
    )
    yield from row("At the end", "; ".join(held), _LABEL)


def _begins(device: DeviceSummary) -> str:
    if device.begins != "mid_run":
        return _BEGINS[device.begins]
    size = format_size(device.start_bytes or 0)
    return f"mid-run, at {size} in {plural(device.start_segments or 0, 'segment')}"


def _time(device: DeviceSummary) -> str:
    if device.first_us is None or device.last_us is None:
        return "no times"
    if device.first_us < _EPOCH_US:
        return "no times of day"
    begun = datetime.fromtimestamp(device.first_us // 1_000_000, UTC)
    return f"{(device.last_us - device.first_us) / 1e6:,.2f} s from {begun:%Y-%m-%d %H:%M:%S} UTC"


def _stacks(found: Stats) -> str:
    missing = sum(device.stackless for device in found.devices)
    deep = f", up to {plural(found.deepest, 'frame')} deep" if found.stacks else ""
    stacks = f"{found.stacks:,}{deep}; {plural(missing, 'request')} without a stack"
    more = [plural(found.annotations, "annotation")] * bool(found.annotations)
    more += [plural(found.marks, "mark")] * bool(found.marks)
    return "; ".join([stacks, *more])


def document(found: Stats) -> dict[str, Any]:
    known = {key: value or None for key, value in fields(found, _UNLESS_EMPTY).items()}
    return {
        "file": found.path,
        **fields(found, "size_bytes=form.size sha256=form.sha256 kind=form.kind"),
        "packing": known.pop("packing"),
        **fields(found, "protocol=form.protocol layout releases"),
        **{key: known[key] for key in ("torch_version", "device_name", "device_memory")},
        "is_phantom": found.is_phantom,
        "command": known["command"],
        "conf": found.conf,
        "devices": [asdict(device) for device in found.devices],
        **fields(found, "stacks frames deepest annotations marks"),
    }
