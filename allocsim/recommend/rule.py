"""Choice of the one setting that a command recommends.

All candidates are replayed with the same requests, device memory and PyTorch release.  A candidate
must serve every request, and avoid an error, retries or at least 1 % of the peak reserved memory.

1. Settings without thrashing come first, then settings with fewer retries, then settings with a
   lower peak of reserved memory.  Among the settings within 1 % of the lowest peak, a setting is
   preferred if it has the same meaning in every PyTorch release that may have written the
   recording.  If several remain, the setting with the fewest options is chosen, then the setting
   with the fewest driver calls.
2. A fitted setting has values derived from the sizes in the first half of the recording.  It is
   chosen only if its peak is over 5 % lower than that of the best setting that is not fitted.  This
   must hold for every possible state at the start of the recording.  It must also hold in the
   second half alone, which tests the values.
3. Nothing is recommended if the baseline differs from the recording, or if something outside the
   allocator refused the request, since a replay proves nothing then.

`tune --find-device` orders settings by the smallest sufficient device and does not use these rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache

import numpy as np

from allocsim.core import RELEASES, Release
from allocsim.recommend.offer import Costs, Offer, cost_of
from allocsim.recommend.settings_to_try import (
    is_fitted,
    overflow_of,
    proposals,
    rescues,
    was_refused,
)
from allocsim.replaying import Prepared, Standing, Trials, trial_of_run
from allocsim.simulation import DeviceRun, Setting, releases_needed

MIN_SAVING_DIVISOR = 100
"""Divisor of the peak: a saving, or a difference between settings, below 1/100 of it is ignored."""

_FITTED_SAVING_DIVISOR = 20
"""Divisor: a fitted setting must have a peak over 1/20 lower than the best other setting."""


class WhyNot(StrEnum):
    """Reason for not recommending a setting."""

    WITHHELD = "the replay differs from the recorded run, so it proves nothing about a setting"
    REFUSED = "the device had room, so the request was refused by something no setting changes"
    IMPOSSIBLE = "the request alone is larger than the device"
    FULL = "what is in use at once is more than the device has"
    NO_GAIN = "hardly any memory is idle at the peak"
    NONE_HELPS = "no setting tried helps"


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Recommendation for the devices of one program.

    baseline: present setting (recorded, or given by the user), with its replays.
    best: recommended setting, with its replays; None if no setting is recommended.
    why_not: reason why `best` is None.
    offers: candidates that PyTorch accepts, with their replays.
    needs: PyTorch releases that give the best setting the replayed meaning, such as "PyTorch 2.11
        or later"; None if every release that may have written the recording does.
    since: oldest PyTorch release that supports the best setting; "" if `best` is None.
    is_by_size: True if the recording has only requests and frees, without addresses with which the
        replay could be compared.
    """

    baseline: Offer
    best: Offer | None = None
    offers: tuple[Offer, ...] = ()
    why_not: WhyNot | None = None
    needs: str | None = None
    since: str = ""
    is_by_size: bool = False

    @property
    def saved_bytes(self) -> int:
        """Bytes by which the best setting lowers the peak of reserved memory."""
        return self.baseline.memory - (self.best or self.baseline).memory

    @property
    def is_sure(self) -> bool:
        """True if the best setting helps for every possible state at the start of the recording."""
        if self.best is None or self.is_by_size:
            return False
        low, high = self.best.memory_range
        saved = self.baseline.memory - high
        is_saving = low == high or (
            saved > 0 and saved * MIN_SAVING_DIVISOR >= self.baseline.memory
        )
        return not self.baseline.goes_through or is_saving


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """Device for which a setting is recommended.

    trials: replays of the device under other settings; each result is kept.
    device_run: replay under the present setting (recorded, or given by the user).
    """

    trials: Trials
    device_run: DeviceRun

    @property
    def prepared(self) -> Prepared:
        return self.trials.prepared


def recommend(
    cases: Sequence[Case],
    setting: Setting,
    confs: Sequence[str] | None = None,
    *,
    insists: bool = False,
    in_full: bool = True,
) -> Recommendation:
    """Replay candidate settings on all devices of a program, and recommend one of them or none.

    setting: present setting, under which `Case.device_run` of each case was replayed.
    confs: candidates.  None for the usual settings (`proposals`); if all of them fail, settings
        that may avoid the error (`rescues`) follow.
    insists: True to replay candidates even if the replay under `setting` differs from the
        recording.
    in_full: False to end replays that can no longer win.  The recommendation is the same, but
        `offers` then contains incomplete replays.
    """
    prepared = [case.prepared for case in cases]
    runs = tuple(trial_of_run(setting.conf, case.device_run) for case in cases)
    baseline = Offer(setting, runs)
    why_not = next((why for case in cases if (why := _closed(case)) is not None), None)
    if why_not is None and not _has_gain(cases, baseline):
        why_not = WhyNot.NO_GAIN
    if why_not is not None and not (insists and why_not is WhyNot.WITHHELD):
        return Recommendation(baseline, why_not=why_not)

    for case in cases:
        case.trials.add(setting, case.device_run)

    release = prepared[0].release
    needed = _needed_by(release, prepared[0].releases)

    def tried(each: Setting, found: Iterable[Offer]) -> Offer | None:
        standing = None if in_full else _result_to_beat(baseline, found, each, needed)
        return _offer(cases, each, setting, standing)

    def offered(settings: Iterable[Setting]) -> list[Offer]:
        found: list[Offer] = []
        for each in settings:
            offer = tried(each, found)
            if offer is not None:
                found.append(offer)
        # A replay may have ended early because of a simpler setting that lost later, so each
        # setting is tried again with the final results.
        return [tried(offer.setting, found) or offer for offer in found]

    def late(each: Setting) -> int:
        return max(late_peak(c.trials, each, c.device_run.device_memory) for c in cases)

    if confs is None:
        config = setting.config(release)
        offers = offered(proposals(prepared, config))
        if not any(offer.goes_through for offer in (baseline, *offers)):
            known = {offer.setting for offer in offers}
            offers += offered(s for s in rescues(prepared, config) if s not in known)
    else:
        offers = offered(map(Setting, confs))
    if why_not is not None:
        return Recommendation(baseline, offers=tuple(offers), why_not=why_not)
    found = choose(baseline, offers, late, release, prepared[0].releases)
    return replace(found, is_by_size=prepared[0].is_requests)


def _closed(case: Case) -> WhyNot | None:
    device_run = case.device_run
    if device_run.parting is not None:
        return WhyNot.WITHHELD
    ooms = device_run.ooms
    if device_run.fidelity is not None and ooms and was_refused(case.prepared, ooms[0].entry):
        return WhyNot.REFUSED
    if any(oom.tried_bytes > oom.total_bytes for oom in ooms):
        return WhyNot.IMPOSSIBLE
    if ooms and overflow_of(case.prepared, device_run.device_memory) is not None:
        return WhyNot.FULL
    return None


def _has_gain(cases: Sequence[Case], baseline: Offer) -> bool:
    asked = max(case.device_run.stats["requested_bytes.all.peak"] for case in cases)
    idle = baseline.memory - asked
    return (
        not baseline.goes_through
        or baseline.retries > 0
        or idle * MIN_SAVING_DIVISOR >= baseline.memory
    )


def _result_to_beat(
    baseline: Offer,
    found: Iterable[Offer],
    setting: Setting,
    needed: Callable[[Setting], str | None],
) -> Standing | None:
    # This must agree with `_simplest`, which makes the choice.
    known = [Standing(baseline.memory, baseline.retries)] if baseline.goes_through else []
    good = [
        offer
        for offer in found
        if helps(baseline, offer) and not offer.is_fitted and not offer.thrashes(baseline)
    ]
    if good:
        near = _near_best(baseline, good)
        simpler = [
            offer.memory
            for offer in near
            if offer.setting.n_options < setting.n_options and needed(offer.setting) is None
        ]
        # The simplest setting within 1 % wins, so a simpler setting is beaten only by over 1 %.
        least = min(offer.memory for offer in near)
        most = (
            min(simpler) * MIN_SAVING_DIVISOR // (MIN_SAVING_DIVISOR + 1)
            if simpler
            else least + least // MIN_SAVING_DIVISOR
        )
        known.append(Standing(most, near[0].retries))
    return min(known, key=lambda each: (each.retries, each.memory), default=None)


def _offer(
    cases: Sequence[Case], setting: Setting, base: Setting, standing: Standing | None
) -> Offer | None:
    found = [
        case.trials.under(setting, case.device_run.device_memory, standing=standing)
        for case in cases
    ]
    if any(trial.error is not None for trial in found):
        return None
    release = cases[0].prepared.release
    churns = any(cost_of(trial, Costs()).is_thrashing for trial in found)
    fitted = is_fitted(setting, base, release)
    return Offer(setting, tuple(found), is_fitted=fitted, churns=churns)


def choose(
    baseline: Offer,
    offers: Iterable[Offer],
    late: Callable[[Setting], int],
    release: Release,
    possible: Sequence[str],
) -> Recommendation:
    """Choose the recommended setting among replayed candidates.

    baseline: present setting (recorded, or given by the user), with its replays.
    offers: candidates, with their replays.
    late: function from a setting to its peak reserved bytes in the second half of the recording.
    release: PyTorch release of the replays.
    possible: names of the PyTorch releases that may have written the recording.
    """
    tried, late = tuple(offers), cache(late)  # each call of `late` is a replay
    good = [offer for offer in tried if helps(baseline, offer)]
    plain = [offer for offer in good if not offer.is_fitted]
    needed = _needed_by(release, possible)
    best = _simplest(baseline, plain, needed)
    standing = best if best is not None or not baseline.goes_through else baseline
    for offer in sorted(good, key=lambda offer: _order(baseline, offer)):
        if offer.is_fitted and _is_worth_fitting(baseline, offer, standing, late):
            best = offer
            break
    found = Recommendation(baseline, best, tried)
    if best is None:
        return replace(found, why_not=WhyNot.NONE_HELPS)
    return replace(found, needs=needed(best.setting), since=_since(best.setting.conf, release))


def helps(baseline: Offer, offer: Offer) -> bool:
    """Return True if a setting avoids an error or retries, or saves 1 % of the peak memory.

    baseline, offer: present setting and candidate, with their replays.
    """
    if not offer.goes_through:
        return False
    if not baseline.goes_through:
        return True
    if offer.retries != baseline.retries:
        return offer.retries < baseline.retries
    saved = baseline.memory - offer.memory
    return (
        saved > 0 and saved * MIN_SAVING_DIVISOR >= baseline.memory and not offer.thrashes(baseline)
    )


def _order(baseline: Offer, offer: Offer) -> tuple[bool, int, int]:
    return offer.thrashes(baseline), offer.retries, offer.memory


def _near_best(baseline: Offer, offers: Sequence[Offer]) -> list[Offer]:
    thrashes, retries, least = min(_order(baseline, offer) for offer in offers)
    return [
        offer
        for offer in offers
        if _order(baseline, offer)[:2] == (thrashes, retries)
        and (offer.memory - least) * MIN_SAVING_DIVISOR <= least
    ]


def _needed_by(release: Release, possible: Sequence[str]) -> Callable[[Setting], str | None]:
    return lambda each: releases_needed(each.conf, release, possible)


def _simplest(
    baseline: Offer, offers: Sequence[Offer], needed: Callable[[Setting], str | None]
) -> Offer | None:
    if not offers:
        return None
    near = _near_best(baseline, offers)
    known = [offer for offer in near if needed(offer.setting) is None]
    # Of equal candidates, `min` returns the first, as does a search that leaves out duplicates.
    return min(
        known or near, key=lambda offer: (offer.setting.n_options, offer.calls, offer.memory)
    )


def _is_worth_fitting(
    baseline: Offer, offer: Offer, standing: Offer | None, late: Callable[[Setting], int]
) -> bool:
    if standing is None:
        return True
    if offer.retries > standing.retries or offer.thrashes(baseline):
        return False
    if not _saves(offer.memory_range[1], standing.memory_range[0]):
        return False
    if _saves(offer.memory, standing.memory_at_end):
        # These values bound the peaks of the second half, so its replays are not needed.
        return True
    return _saves(late(offer.setting), late(standing.setting))


def _saves(memory: int, before: int) -> bool:
    return (before - memory) * _FITTED_SAVING_DIVISOR > before


def late_peak(trials: Trials, setting: Setting, device_memory: int | None) -> int:
    _, timeline = trials.timeline(setting, device_memory)
    if timeline is None:
        return 0
    half = len(trials.prepared.trace) // 2
    # At the first entry of the second half, the value of the last row before it still holds.
    start = max(int(np.searchsorted(timeline.entry, half, side="right")) - 1, 0)
    return int(timeline.reserved[start:].max(initial=0))


def _since(conf: str, release: Release) -> str:
    versions = list(RELEASES)
    at = versions.index(release.version)
    while at and releases_needed(conf, release, versions[at - 1 : at]) is None:
        at -= 1
    return versions[at]
