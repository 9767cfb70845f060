"""Explanation of a recording's out-of-memory errors: cause, code and remedies.

Every remedy is proved by a replay.  The number of entries after the error is reported too, because
a recording that ends at its error proves nothing about the time after the error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import overload

from allocsim._repr import Shown
from allocsim.analysis.explain.message_search import OomMessage, Situation
from allocsim.analysis.explain.message_words import text_release
from allocsim.analysis.explain.shortage import OomWatch, Shortage, shortages_of, too_small
from allocsim.analysis.explain.verdict import Verdict, advice_on, judge_text
from allocsim.core import find_release, parse_conf
from allocsim.editing import Saving, savings_at
from allocsim.errors import ConfigError
from allocsim.recommend import Case, Overflow, Recommendation, WhyNot, overflow_of, recommend
from allocsim.recording import Recording
from allocsim.replaying import (
    Prepared,
    Trial,
    Trials,
    Watch,
    bytes_of,
    effects_on,
    prepare,
    replay_prepared,
    smallest_device,
    smallest_fraction,
)
from allocsim.simulation import (
    DeviceRun,
    Hints,
    Progress,
    Run,
    Setting,
    SimulatedOom,
    releases_needed,
)
from allocsim.units import format_size, parse_size


@dataclass(frozen=True, slots=True)
class Cure:
    """Result of the search for a setting that avoids the out-of-memory errors of one device.

    baseline, trials: replay under the recorded settings, and replays under other settings.
    best: replay under the recommended setting; None if no setting is recommended.
    entries_left: number of entries after the last error; None if no error is recorded.
    is_withheld: True if nothing is recommended because the replay differs from the recorded run.
    needs: PyTorch releases that apply the best setting as the replay did, such as "PyTorch 2.11 or
        later"; None if every release that may have written the recording does so.
    """

    device: int
    device_memory: int | None
    baseline: Trial
    trials: tuple[Trial, ...]
    best: Trial | None
    entries_left: int | None
    is_withheld: bool = False
    needs: str | None = None


def cures_of(recommendation: Recommendation, cases: Sequence[Case]) -> tuple[Cure, ...]:
    best = recommendation.best
    return tuple(
        Cure(
            device=case.device_run.device,
            device_memory=case.device_run.device_memory,
            baseline=recommendation.baseline.trials[i],
            trials=tuple(offer.trials[i] for offer in recommendation.offers),
            best=None if best is None else best.trials[i],
            entries_left=_entries_after(case.device_run, case.device_run.ooms),
            is_withheld=recommendation.why_not is WhyNot.WITHHELD,
            needs=recommendation.needs,
        )
        for i, case in enumerate(cases)
    )


def _entries_after(device_run: DeviceRun, ooms: Sequence[SimulatedOom]) -> int | None:
    if not ooms or not ooms[-1].is_recorded:
        return None
    return device_run.entries - 1 - ooms[-1].entry


_BY_FIGURES = ("impossible", "host_fallback", "fraction_limit", "free_above_request", "full")
"""Causes of an error for which the advice follows from its sizes, without a replay."""

_SHOWN = 5  # number of errors in the table of a notebook


@dataclass(frozen=True, slots=True)
class Remedy:
    """Change with which every recorded request succeeds in a replay.

    kind: changed quantity: "conf", "device_memory" or "memory_fraction".
    conf, device_memory: setting, and bytes of device memory, with which every request succeeds.
    trial: results of the replay with the change.
    smaller_fails_at: entry that fails on a device that is 2 MiB smaller; only for "device_memory".
    needs: PyTorch releases that apply `conf` as the replay did, such as "PyTorch 2.11 or later";
        None if every release that may have written the recording does so.
    """

    kind: str
    conf: str
    device_memory: int
    trial: Trial
    smaller_fails_at: int | None = None
    needs: str | None = None


@dataclass(frozen=True, slots=True, repr=False)
class DeviceExplanation(Shown):
    """Explanation of the out-of-memory errors of one device.

    device_run: replay of the device.
    shortages: its out-of-memory errors, in order.
    remedies: changes with which every request succeeds, best first; empty if the replay under the
        recorded settings differs from the recording.
    tried: results of all replays under other settings.
    entries_left: number of entries after the last error; None if no error is recorded.
    advice: sentences for each error in `shortages`.
    recommendation: recommended setting for all devices of the program.
    savings: changes of the program that reduce memory at the entry at which most was missing; empty
        unless the device was too small and no setting helps.
    missing_bytes: bytes that the device lacks for the last failed request or for the peak of live
        memory, whichever is more; None if the device was not too small.
    """

    device_run: DeviceRun
    shortages: tuple[Shortage, ...]
    remedies: tuple[Remedy, ...]
    tried: tuple[Trial, ...]
    entries_left: int | None
    advice: tuple[tuple[str, ...], ...]
    recommendation: Recommendation
    savings: tuple[Saving, ...] = ()
    missing_bytes: int | None = None

    def headline(self) -> str:
        device = f"device {self.device_run.device}"
        if not self.shortages:
            return f"{device}: no request failed"
        cures = [remedy.conf for remedy in self.remedies if remedy.kind == "conf"]
        cure = f"; {cures[0] or 'the defaults'} would avoid it" if cures else ""
        return f"{device}: {_summary(self.shortages[-1])}{cure}"

    def figures_shown(self) -> Iterator[tuple[str, str]]:
        for shortage in self.shortages[-_SHOWN:]:
            yield "out of memory", _summary(shortage)
        for remedy in self.remedies:
            with_conf = f"{format_size(remedy.device_memory)} with {remedy.conf or 'the defaults'}"
            yield f"would help: {remedy.kind}", with_conf


def _summary(shortage: Shortage) -> str:
    tried = format_size(shortage.tried_bytes)
    return f"{shortage.cause} at entry {shortage.oom.entry:,}, {tried} tried"


def explain_recording(
    recording: Recording,
    conf: str | None = None,
    *,
    device_memory: int | str | None = None,
    torch_version: str | None = None,
    device: int | None = None,
    hints: Hints | None = None,
    progress: Progress | None = None,
    watch: Watch | None = None,
) -> tuple[Run, tuple[DeviceExplanation, ...]]:
    """Replay `recording` and explain every out-of-memory error of each device.

    Return the replay, and one explanation for each device.
    watch: function that is called with the conf of each further replay; it returns a progress
        callback for this replay, or None for no progress.
    The other parameters are the same as in `replay`.
    """
    devices = prepare(recording, device, torch_version, hints=hints)
    return explain_prepared(
        devices, conf, device_memory=device_memory, progress=progress, watch=watch
    )


def explain_prepared(
    devices: Sequence[Prepared],
    conf: str | None = None,
    *,
    device_memory: int | str | None = None,
    progress: Progress | None = None,
    watch: Watch | None = None,
) -> tuple[Run, tuple[DeviceExplanation, ...]]:
    setting, memory = None if conf is None else Setting(conf), bytes_of(device_memory)
    devices = [each.on(memory) for each in devices]
    seen = OomWatch(devices)
    run = replay_prepared(
        devices, setting, device_memory=memory, progress=progress, observers=(seen,)
    )
    cases = [
        Case(Trials(each, watch, effects_on(each)), device_run)
        for each, device_run in zip(devices, run.devices, strict=True)
    ]
    found = recommend(cases, Setting(run.conf))
    return run, tuple(
        explain_device(
            case, run, shortages_of(case.device_run, case.prepared.trace, seen), found, index
        )
        for index, case in enumerate(cases)
    )


def explain_device(
    case: Case,
    run: Run,
    shortages: tuple[Shortage, ...],
    recommendation: Recommendation,
    index: int = 0,
) -> DeviceExplanation:
    """Return the errors of one replayed device, the changes that avoid them, and advice.

    case: the device, its replay, and a cache of its replays under other settings.
    index: position of the device in `run`.
    """
    device_run = case.device_run
    remedies: tuple[Remedy, ...] = ()
    tried = tuple(offer.trials[index] for offer in recommendation.offers)
    # If the device had enough memory, no setting can avoid the refusal.
    is_open = not shortages or shortages[0].cause != "free_above_request"
    if device_run.ooms and device_run.parting is None and is_open:
        best = recommendation.best
        chosen = None if best is None else best.trials[index]
        remedies = _remedies(case, Setting(run.conf), tried, chosen)
    left = _entries_after(device_run, [shortage.oom for shortage in shortages])
    memory, last = device_run.device_memory, shortages[-1] if shortages else None
    is_full = recommendation.why_not is WhyNot.FULL
    over = overflow_of(case.prepared, memory) if is_full else None
    advice = tuple(
        _advice(run, device_run, each, remedies, recommendation, over=over) for each in shortages
    )
    savings: tuple[Saving, ...] = ()
    at, missing = (None, None) if last is None else (last.oom.entry, last.missing_bytes)
    if over is not None and (lacked := over.live_bytes - over.room_bytes) > (missing or 0):
        at, missing = over.entry, lacked
    if at is not None and missing and device_run.parting is None and recommendation.best is None:
        savings = savings_at(case.prepared, Setting(run.conf), memory, at, missing)
    return DeviceExplanation(
        device_run, shortages, remedies, tried, left, advice, recommendation, savings, missing
    )


def _remedies(
    case: Case, setting: Setting, tried: Sequence[Trial], best: Trial | None
) -> tuple[Remedy, ...]:
    trials, memory = case.trials, case.device_run.device_memory
    found: list[Remedy] = []
    if memory is not None:
        good = [trial for trial in tried if trial.goes_through]
        good.sort(key=lambda trial: trial is not best)
        found += [Remedy("conf", trial.conf, memory, trial) for trial in good]
        fraction = smallest_fraction(trials, setting, memory)
        if fraction is not None:
            found.append(Remedy("memory_fraction", fraction[0].conf, memory, fraction[1]))
    # The smallest device is reported under the present setting, and under the best other setting.
    for conf in dict.fromkeys([setting.conf, *(each.conf for each in found[:1])]):
        capacity = smallest_device(trials, Setting(conf))
        if capacity is not None:
            size, trial = capacity.device_memory, capacity.trial
            found.append(Remedy("device_memory", conf, size, trial, capacity.fails_at))
    release, possible = trials.prepared.release, trials.prepared.releases
    return tuple(
        replace(each, needs=releases_needed(each.conf, release, possible)) for each in found
    )


def _advice(
    run: Run,
    device_run: DeviceRun,
    shortage: Shortage,
    remedies: Sequence[Remedy],
    recommendation: Recommendation,
    *,
    over: Overflow | None,
) -> tuple[str, ...]:
    if shortage.cause == "free_above_request":
        return (
            "The device had room for this request, so it was refused by something that is not in "
            "the recording: a memory fraction set while the program ran, another process, or the "
            "driver.",
            *_in_general(run, shortage),
        )
    best = recommendation.best
    # A replay that succeeds contradicts the general advice that no setting can help.
    is_refuted = best is not None and shortage.cause == "full"
    found = [] if is_refuted else [*_in_general(run, shortage)]
    if best is not None:
        conf = best.setting.conf
        line = f"PYTORCH_CUDA_ALLOC_CONF={conf}" if conf else "no PYTORCH_CUDA_ALLOC_CONF"
        needs = f" ({recommendation.needs})" if recommendation.needs else ""
        found.append(f"Set {line}: a replay under it answers every recorded request{needs}.")
    elif device_run.parting is not None:
        found.append("No setting was tried, since the replay differs from the recorded run.")
    elif over is None and shortage.cause not in _BY_FIGURES:
        found.append("No setting tried answers every recorded request.")
    if over is not None and over.entry != shortage.oom.entry:
        found.insert(0, too_small(over, shortage.oom.entry))
    for each in remedies:
        if each.kind == "device_memory" and each.conf == run.conf:
            text = f"With these settings a device of {format_size(each.device_memory)} is the "
            found.append(f"{text}smallest that answers every recorded request.")
    return tuple(found)


def _in_general(run: Run, shortage: Shortage) -> Sequence[str]:
    if shortage.cause == "pending_free":
        return (
            "Repeat the request: it succeeds the second time, since the wait has ended. To avoid "
            "the error, let the stream that used the block finish before this line, or free the "
            "block earlier.",
        )
    if shortage.cause == "private_pool":
        return (
            "Delete the CUDA graphs or MemPools that are no longer used, or mark the pool "
            "use_on_oom (PyTorch 2.8 and later).",
        )
    if shortage.cause not in _BY_FIGURES:
        return ()
    message = OomMessage(shortage.oom.message, 1, shortage.figures, backend="CUDA")
    config = parse_conf(run.conf, find_release(run.torch_version))
    release = text_release(run.torch_version)
    options = (text_release(each).options for each in run.releases)
    release = replace(release, options=release.options.intersection(*options))
    return advice_on(Situation(message, shortage.figures, shortage.cause, config, release))


@overload
def explain(
    source: str,
    conf: str | None = None,
    *,
    torch_version: str | None = None,
    device_memory: int | str | None = None,
) -> tuple[Verdict, ...]: ...


@overload
def explain(
    source: Recording,
    conf: str | None = None,
    *,
    torch_version: str | None = None,
    device_memory: int | str | None = None,
    hints: Hints | None = None,
) -> tuple[DeviceExplanation, ...]: ...


def explain(
    source: str | Recording,
    conf: str | None = None,
    *,
    torch_version: str | None = None,
    device_memory: int | str | None = None,
    hints: Hints | None = None,
) -> tuple[Verdict, ...] | tuple[DeviceExplanation, ...]:
    """Explain the out-of-memory errors in a text, or the errors of each device of a recording.

    For a text without an error, return one verdict, with the cause "no_figures".

    source: text of an error or log, or a recording.
    conf: PYTORCH_CUDA_ALLOC_CONF; for a text the value that was set, for a recording the value to
        replay.
    torch_version: PyTorch release, such as "2.9.1"; None to infer it from the text or recording.
    device_memory: bytes or "24GiB".  For a recording, the memory of the replayed device.  For a
        text, the card's memory if the text does not print it, else the memory of another card on
        which the request might fit.
    hints: facts about the recorded program that the recording does not contain.
    Raises ConfigError for an invalid conf, PyTorch release or size, RecordingError for a recording
    with nothing to replay.
    """
    if isinstance(source, Recording):
        _, devices = explain_recording(
            source, conf, torch_version=torch_version, device_memory=device_memory, hints=hints
        )
        return devices
    if hints is not None:
        raise ConfigError("hints apply to a recorded program only; expected a recording")
    if not isinstance(source, str):
        raise ConfigError(
            f"explain got {type(source).__name__}; expected the text of an error or a recording"
        )
    try:
        memory = None if device_memory is None else parse_size(device_memory)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return judge_text(source, conf, torch_version=torch_version, device_memory=memory)
