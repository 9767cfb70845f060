"""Short answer of `replay`, `explain`, `tune` and `risk`, with the setting that they recommend.

The answer, a screen, has at most 22 lines of 80 columns.  It shows, in this order, the verdict, the
cause, the setting to paste and the code that holds the memory.  Parts that do not fit are left out,
the least important first.  Every command describes the setting in the same words.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from allocsim._repr import printable
from allocsim.report.layout import WIDTH, clipped, fields, paragraph, plural, row, shortened, warned
from allocsim.units import format_range, format_size

if TYPE_CHECKING:
    from allocsim.analysis.explain import Cure, DeviceExplanation
    from allocsim.analysis.top import Top
    from allocsim.editing import Saving
    from allocsim.recommend import Recommendation
    from allocsim.simulation import DeviceRun, Run


import shlex
from typing import TYPE_CHECKING

from allocsim.report.layout import LABEL

if TYPE_CHECKING:
    from allocsim.analysis.explain import Cure, DeviceExplanation
    from allocsim.analysis.risk import Risk
    from allocsim.analysis.tune import Tuning
    from allocsim.recommend import Recommendation
    from allocsim.replaying import Trial
    from allocsim.simulation import Setting

    Recorded = Cure | DeviceExplanation | Risk | Tuning


EXPANDABLE_NOTE = "expandable_segments is not available on Windows, WSL and Jetson."
FITTED_NOTE = (
    "The value was fitted to the first half of this recording and also saves 5 % on the second "
    "half: use it for runs like this one."
)
_NOTED_SHARE = 0.05
"""Share of the device's memory above which the memory outside PyTorch is mentioned."""
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


def paste_notes(found: Recommendation, devices: Iterable[Recorded] = ()) -> list[str]:
    """Return sentences on the recommended setting: its proof by a replay, and its PyTorch releases.

    devices: results of each device, with the number of entries after its last out-of-memory error.
    """
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
        notes.append(later_requests(entries_left, "that one"))
    if "expandable_segments:True" in best.setting.conf:
        notes.append(EXPANDABLE_NOTE)
    return notes


def ends_after(entries_left: int, what: str) -> str:
    """Return a clause such as "the recording ends 3 entries after the error".

    entries_left: number of entries after the named entry.
    what: name of this entry in the clause, such as "the error".
    """
    if not entries_left:
        return f"the recording ends with {what}"
    return f"the recording ends {plural(entries_left, 'entry', 'entries')} after {what}"


def later_requests(entries_left: int, what: str) -> str:
    """Return a sentence that requests after the end of the recording are not proved to succeed.

    entries_left: number of entries after the failed entry.
    what: name of the failed entry in the sentence, such as "the error".
    """
    return f"Later requests are not proved: {ends_after(entries_left, what)}."


def paste_rows(found: Recommendation, devices: Iterable[Recorded] = ()) -> list[str]:
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
        **fields(found, "needs since is_fitted=best.is_fitted saved_bytes"),
    }


def trial_document(trial: Trial) -> dict[str, Any]:
    # Keys are added, never renamed.
    return fields(trial, _TRIAL) | range_document(trial)


def range_document(trial: Trial) -> dict[str, int | None]:
    """Return the possible peaks under a setting as JSON; {} if the peak is one number.

    There are two peaks if blocks were live before entry 0: the replay can start with the recorded
    segments, or start empty and first request these blocks.
    """
    if trial.peak_range is None:
        return {}
    return fields(trial, "peak_reserved_kept_bytes=peak_kept peak_reserved_anew_bytes=peak_anew")


def peak_text(trial: Trial) -> str:
    """Return the peak of reserved memory under a setting, or its range, as text."""
    low, high = trial.peak_range or (0, 0)
    if low == high:
        return format_size(trial.peak_reserved_bytes)
    return f"{format_size(low)} to {format_size(high)}"


def range_sentence(trial: Trial) -> str | None:
    """Return a sentence on blocks from before entry 0 if the peak depends on them, else None."""
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


HEIGHT = 22
TABLES = "-v: every setting and figure; --json: the same for programs"
_SHOWN_DEVICES = 3
_MORE = "-v: everything else; --json: the same for programs"
_OWNERS, _CATEGORIES, _INDENT = 3, 4, 4
_LEAST_WORDS = 12
"""Least number of free columns in the line of a memory owner for which its category is added."""


class Tone(StrEnum):
    """Visual style of an output line; `cli/output.py` has the colour of each style."""

    PLAIN = "plain"
    GOOD = "good"
    """Verdict that nothing is wrong."""
    FAILURE = "failure"
    """Failure, warning, or difference of the replay from the recording."""
    PASTE = "paste"
    """Command or code that the user can paste."""


@dataclass(frozen=True, slots=True)
class Part:
    """Lines of a screen (short answer) that are shown or left out together.

    tone: visual style of the lines.
    rank: parts with the highest number are left out first; a part with 0 is always shown.
    starts: True for an empty line before the part, if the screen has room.
    """

    lines: Sequence[str]
    tone: Tone = Tone.PLAIN
    rank: int = 0
    starts: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """Short answer of a command: lines, each with its visual style."""

    lines: tuple[tuple[str, Tone], ...]

    def __str__(self) -> str:
        return "".join(f"{line}\n" for line, _ in self.lines)


def answer_of(parts: Sequence[Part], more: str = _MORE) -> Answer:
    """Return a screen of at most `HEIGHT` lines, without parts that do not fit.

    more: last line, which names the options that print the rest.
    """
    kept = [each for each in parts if each.lines]
    while _height(kept) > HEIGHT and (ranks := [each.rank for each in kept if each.rank]):
        # Of parts with equal rank, the last is removed first, since it is the least important.
        last = max(i for i, each in enumerate(kept) if each.rank == max(ranks))
        del kept[last]
    room = HEIGHT - _height(kept)
    starts = [each for each in kept[1:] if each.starts]
    lines: list[tuple[str, Tone]] = []
    for each in kept:
        gaps = room >= len(starts) + 1 and each in starts
        lines += [("", Tone.PLAIN)] * gaps
        lines += [(line, each.tone) for line in each.lines]
    lines += [("", Tone.PLAIN)] * (room >= len(starts) + 1)
    return Answer((*lines, (more, Tone.PLAIN)))


def _height(parts: Sequence[Part]) -> int:
    return sum(len(each.lines) for each in parts) + 1


def owners_part(top: Top | None, rank: int = 0) -> Part:
    """Return lines with the three largest owners of memory in `top`, and the largest categories.

    rank: `Part.rank` of the result: the higher, the earlier it is left out.
    """
    if top is None or not top.rows:
        return Part(())
    when = "at the error" if top.at.what == "oom" else f"at the {top.at.what}"
    if top.at.what == "entry":
        when = f"after entry {top.at.entry or 0:,}"
    total = max(top.allocated_bytes, 1)
    lines = row("Held by", f"{format_size(top.allocated_bytes)} allocated {when}:")
    for each in top.rows[:_OWNERS]:
        figures = f"{'':{_INDENT}}{format_size(each.bytes):>11} {each.bytes / total:4.0%}  "
        line = figures + shortened(printable(each.owner), WIDTH - len(figures))
        room = WIDTH - len(line) - len(": ")
        if room >= _LEAST_WORDS and each.category != each.owner:
            line += f": {textwrap.shorten(each.category, room, placeholder=' …')}"
        lines.append(line)
    largest = list(top.categories.items())[:_CATEGORIES]
    shares = (f"{name} {size / total:.0%}" for name, size in largest if size * 200 >= total)
    return Part([*lines, *row("By category", ", ".join(shares))], rank=rank, starts=True)


def most_urgent(devices: Sequence[DeviceRun]) -> list[DeviceRun]:
    return sorted(devices, key=lambda device: not device.ooms)[:_SHOWN_DEVICES]


def warnings_part(run: Run) -> Part:
    shown = 2 if run.card is not None and run.card.is_shared else 1
    return said_first(run.warnings[:shown], run.named_notes)


def said_first(warnings: Sequence[str], notes: Sequence[str]) -> Part:
    from allocsim.replaying import OTHER_RELEASE  # noqa: PLC0415

    lines = warned(warnings)[:-1]  # without the empty line at the end
    other = [line for note in notes if note.endswith(OTHER_RELEASE) for line in row("Note", note)]
    return Part([*lines, *other], Tone.FAILURE if lines else Tone.PLAIN)


def device_prefix(run: Run, device: DeviceRun) -> str:
    return f"device {device.device}: " if len(run.devices) > 1 else ""


def hidden_devices(run: Run, shown: Sequence[DeviceRun]) -> Part:
    hidden = [device for device in run.devices if device not in shown]
    if not hidden:
        return Part(())
    failed = sum(bool(device.ooms) for device in hidden)
    what = f"{plural(failed, 'of them', 'of them')} out of memory" if failed else "none failed"
    return Part(row("", f"and {plural(len(hidden), 'more device')}: {what} (--device N shows one)"))


def entries(run: Run) -> str:
    if len(run.devices) == 1:
        (device,) = run.devices
        return f"{plural(device.entries, 'entry', 'entries')} of device {device.device}"
    entries = sum(device.entries for device in run.devices)
    return f"{plural(entries, 'entry', 'entries')} of {len(run.devices):,} devices"


def memory(run: Run, device: DeviceRun) -> list[str]:
    name = device_prefix(run, device)
    memory = device.device_memory
    card = "a device of unknown size" if memory is None else f"a device of {format_size(memory)}"
    outside = device.peak_device_bytes - device.peak_reserved_bytes
    if memory is not None and outside > memory * _NOTED_SHARE:
        card += f" ({format_size(outside)} outside PyTorch)"
    peaks = (
        f"{name}{format_size(device.peak_reserved_bytes)} reserved at the peak on {card}, "
        f"{format_size(device.peak_allocated_bytes)} allocated"
    )
    low, high = map(format_size, device.peak_range)
    if low != high:
        peaks += f"; {low} to {high}, depending on unrecorded calls"
    return row("Memory", peaks)


def to_paste(found: Recommendation | None, devices: Iterable[Recorded] = ()) -> list[Part]:
    """Return the setting to paste, and sentences that say if a replay proved that it helps.

    devices: results of each device, with the number of entries after its last out-of-memory error.
    """
    if found is None:
        return []
    lines = paste_line(found)
    tone = Tone.PLAIN if found.best is None else Tone.PASTE
    notes = " ".join(paste_notes(found, devices))
    return [Part(lines, tone, starts=True), Part(paragraph(notes) if notes else ())]


def savings_part(savings: Sequence[Saving], missing: int | None = None) -> Part:
    """Return lines with changes of the program that save memory, and the bytes that each saves.

    missing: bytes that the failed request lacks; None if unknown.
    """
    if not savings:
        return Part(())
    head = "estimates of what each change saves then, from the categories"
    if missing is not None:
        head = f"{format_size(missing)} less, by one change or several (estimates):"
    lines = row("To fit", head)
    for each in savings:
        enough = ", enough" if each.is_enough else ""
        figures = "a replay serves every request"
        if each.low_bytes is not None and each.high_bytes is not None:
            figures = format_range(each.low_bytes, each.high_bytes)
        lines.append(clipped(f"{figures:>26}  {each.change}{enough}", WIDTH))
    return Part(lines, starts=True)


def savings_document(savings: Sequence[Saving]) -> list[dict[str, Any]]:
    keys = "change low_bytes high_bytes is_enough is_proved"
    return [fields(each, keys) for each in savings]
