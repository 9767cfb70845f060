"""Result of `allocsim convert`, as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from allocsim.recording import Recording, Trace
from allocsim.report.formats import Format
from allocsim.report.layout import fields, plural
from allocsim.simulation import DeviceRun, Run
from allocsim.units import format_size


def text(output: str, size: int, chosen: Format, recording: Recording, runs: Sequence[Run]) -> str:
    """Return a line about the written file, and a line about each replay in it.

    size: bytes of the file.
    runs: replays whose result was written; empty if the recording was only converted.
    """
    entries = plural(sum(map(len, recording.devices)), "entry", "entries")
    if len(recording.devices) > 1:
        entries += f" of {len(recording.devices)} devices"
    lines = [f"{output}: {chosen.what}; {entries}, {format_size(size)}"]
    for run in runs:
        device = run.devices[0]
        of = f"device {device.device}, " if len(runs) > 1 else ""
        conf = f"under {run.conf}" if run.conf else "under default settings"
        lines.append(f"  {of}replayed {conf}, PyTorch {run.torch_version}: {_came_to(device)}")
    return "\n".join(lines) + "\n"


def _came_to(run: DeviceRun) -> str:
    peak = f"{format_size(run.peak_reserved_bytes)} reserved at the peak"
    if not run.ooms:
        return peak
    ends = ", where it ends" if run.stopped_at is not None else ""
    return f"{peak}, out of memory at entry {run.ooms[-1].entry:,}{ends}"


def document(
    output: str, size: int, chosen: Format, recording: Recording, runs: Sequence[Run]
) -> dict[str, Any]:
    simulated = {run.devices[0].device: run for run in runs}
    return {
        "output": output,
        "format": chosen.name,
        "bytes": size,
        "is_simulated": bool(runs),
        "devices": [_device(trace, simulated.get(trace.device)) for trace in recording.devices],
    }


def _device(trace: Trace, run: Run | None) -> dict[str, Any]:
    written = {"device": trace.device, "entries": len(trace), "segments": len(trace.segments)}
    if run is None:
        return written
    peaks = "device_memory peak_allocated_bytes peak_reserved_bytes stopped_at"
    return written | fields(run, "conf torch_version") | fields(run.devices[0], peaks)
