"""First screen of `replay`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from allocsim.report.answer import (
    Answer,
    Tone,
    answer_of,
    entries,
    memory,
    most_urgent,
    named,
    of_owners,
    others,
    part,
    to_paste,
    warnings,
)
from allocsim.report.layout import number, row
from allocsim.report.replay import Found, proof_rows, verdict_sentence
from allocsim.report.spill import spill_rows
from allocsim.simulation import DeviceRun, Run

if TYPE_CHECKING:
    from allocsim.analysis.explain import Shortage
    from allocsim.analysis.top import Top

__all__ = ["replay_screen"]


def replay_screen(
    run: Run,
    shortages: Mapping[int, Sequence[Shortage]],
    found: Found | None = None,
    top: Top | None = None,
) -> Answer:
    """Return the first screen of `allocsim replay`; parameters as in `replay_text`."""
    shown = most_urgent(run.devices)
    parts = [warnings(run)]
    for device in shown:
        ooms = shortages.get(device.device, ())
        label, name = named("Verdict", run, device)
        lines = row(label, name + verdict_sentence(device, ooms))
        parts.append(part(lines, Tone.FAILURE if ooms else Tone.GOOD))
    conf = run.conf or "PyTorch's defaults"
    replayed = f"{entries(run)} under {conf}, as PyTorch {run.torch_version}"
    parts += [others(run, shown), part(row("Replayed", replayed), rank=4)]
    for device in shown:
        is_exact = device.fidelity is None or device.fidelity.is_exact
        lines = proof_rows(device)
        lines = lines if len(shown) == 1 else _proof_in_a_line(device)
        tone = Tone.PLAIN if is_exact else Tone.FAILURE
        parts.append(part(lines, tone, starts=device is shown[0]))
    parts += [part(memory(run, device), rank=3) for device in shown]
    parts += [part(lines, Tone.FAILURE) for device in shown if (lines := spill_rows(device))]
    paste = [] if found is None else to_paste(*found)
    return answer_of([*parts, *paste, of_owners(top, rank=2)])


def _proof_in_a_line(device: DeviceRun) -> list[str]:
    fidelity = device.fidelity
    if fidelity is None:
        return row(
            "Proof", f"device {device.device}: none, the settings differ from the recorded ones"
        )
    if not fidelity.is_compared:
        return row("Proof", f"device {device.device}: none, the file holds requests only")
    found = f"{number(fidelity.addresses_matched)} of {number(fidelity.allocations)} addresses"
    return row("Proof", f"device {device.device}: {found} as recorded")
