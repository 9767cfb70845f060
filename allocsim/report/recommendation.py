"""Recommended setting as text and as JSON, with the same words in every command.

A statement that was not confirmed by a replay is called unproved.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from allocsim.report.layout import LABEL, WIDTH, fields, paragraph, plural, row
from allocsim.units import format_range, format_size

if TYPE_CHECKING:
    from allocsim.analysis.explain import Cure, DeviceExplanation
    from allocsim.recommend import Recommendation
    from allocsim.replaying import Trial
    from allocsim.simulation import Setting

EXPANDABLE_NOTE = "expandable_segments is not available on Windows, WSL and Jetson."
FITTED_NOTE = (
    "The value was fitted to the first half of this recording and also saves 5 % on the second "
    "half: use it for runs like this one."
)
_TRIAL = (
    "conf oom_entry peak_reserved_bytes peak_allocated_bytes num_alloc_retries num_device_alloc "
    "num_device_free"
)
NAME = "PYTORCH_CUDA_ALLOC_CONF"


def paste_line(found: Recommendation) -> list[str]:
    if found.best is None:
        why = "" if found.why_not is None else f": {found.why_not}"
        return row("To paste", f"nothing{why}.")
    return paste_setting(found.best.setting)


def paste_setting(setting: Setting) -> list[str]:
    """Return report lines with the label "To paste" and the bash command that applies `setting`."""
    line = paste_lines(setting)["bash"]
    if len(line) <= WIDTH - LABEL:
        return [f"{'To paste':{LABEL}}{line}"]
    return ["To paste", line]


def paste_notes(
    found: Recommendation, devices: Iterable[Cure | DeviceExplanation] = ()
) -> list[str]:
    """Return sentences on the recommended setting: its proof by a replay, and its availability."""
    best = found.best
    if best is None:
        return []
    release = f"Available from PyTorch {found.since} on."
    if found.needs is not None:
        release = f"It needs {found.needs}; the recording may come from another release."
    sure = "Proved" if found.is_sure else "Likely, not proved"
    notes = [f"{sure}: a replay under this setting {_proof(found)}.", release]
    if best.is_fitted:
        notes.append(FITTED_NOTE)
    notes += [text for trial in best.trials if (text := range_sentence(trial)) is not None]
    entries_left = next((d.entries_left for d in devices if d.entries_left is not None), None)
    if entries_left is not None:
        notes.append(f"Later requests are not proved: {ends_after(entries_left, 'that one')}.")
    if "expandable_segments:True" in best.setting.conf:
        notes.append(EXPANDABLE_NOTE)
    return notes


def ends_after(entries_left: int, what: str) -> str:
    """Return a clause such as "the recording ends 3 entries after that one"."""
    if not entries_left:
        return f"the recording ends with {what}"
    return f"the recording ends {plural(entries_left, 'entry', 'entries')} after {what}"


def paste_rows(
    found: Recommendation, devices: Iterable[Cure | DeviceExplanation] = ()
) -> list[str]:
    notes = paste_notes(found, devices)
    return paste_line(found) + [line for note in notes for line in paragraph(note)]


def _proof(found: Recommendation) -> str:
    base, best = found.baseline, found.best or found.baseline
    retries = plural(best.retries, "retry", "retries")
    peak = format_range(*best.memory_range)
    if not base.goes_through:
        return (
            f"serves every request, including the failed one, with a peak of {peak} and {retries}"
        )
    if best.retries < base.retries:
        return f"has {retries} instead of {base.retries:,} and a peak of {peak}"
    return f"reserves at most {peak} instead of {format_size(base.memory)}, with {retries}"


def paste_lines(setting: Setting) -> dict[str, str]:
    """Return the line to paste for "bash", "powershell", "cmd" and "python".

    The key "call" has a Python call, if the setting needs a call besides the environment variable.
    """
    conf, quoted = setting.conf, setting.conf.replace("'", "''")
    python = f'os.environ["{NAME}"] = "{conf}"' if conf else f'os.environ.pop("{NAME}", None)'
    lines = {
        "bash": f"export {NAME}={shlex.quote(conf)}" if conf else f"unset {NAME}",
        "powershell": f"$env:{NAME} = '{quoted}'" if conf else f"Remove-Item Env:{NAME}",
        "cmd": f'set "{NAME}={conf}"',
        "python": python,
    }
    if setting.call_fraction is not None:
        lines["call"] = f"torch.cuda.set_per_process_memory_fraction({setting.call_fraction:g})"
    return lines


def recommendation_document(found: Recommendation | None) -> dict[str, Any] | None:
    if found is None:
        return None
    best = found.best
    if best is None:
        return {"conf": None, "why_not": None if found.why_not is None else str(found.why_not)}
    return {
        "conf": best.setting.conf,
        "why_not": None,
        "env": f"{NAME}={best.setting.conf}",
        "paste": paste_lines(best.setting),
        "needs": found.needs,
        "since": found.since,
        "is_fitted": best.is_fitted,
        "saved_bytes": found.saved_bytes,
    }


def trial_document(trial: Trial) -> dict[str, Any]:
    # Keys are added, never renamed.
    return fields(trial, _TRIAL) | range_document(trial)


def range_document(trial: Trial) -> dict[str, int | None]:
    """Return the range of the peak under a setting as JSON; {} if the peak is one number."""
    if trial.peak_range is None:
        return {}
    return fields(trial, "peak_reserved_kept_bytes=peak_kept peak_reserved_anew_bytes=peak_anew")


def peak_text(trial: Trial) -> str:
    """Return the peak of reserved memory under a setting, or its range."""
    low, high = trial.peak_range or (0, 0)
    if low == high:
        return format_size(trial.peak_reserved_bytes)
    return f"{format_size(low)} to {format_size(high)}"


def range_sentence(trial: Trial) -> str | None:
    """Return a sentence if blocks from before entry 0 affect the peak under a setting."""
    if trial.peak_range is None:
        return None
    low, high = trial.peak_range
    if trial.peak_kept is None or trial.peak_anew is None:
        how = "keep their places" if trial.peak_anew is None else "are placed again"
        return f"Proved only if the blocks from before the first entry {how}."
    if low == high:
        return None
    return (
        "The recording starts mid-run: the peak depends on where the setting places the blocks "
        "from before the first entry (docs/commands/replay.md)."
    )
