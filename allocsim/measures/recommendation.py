"""The one setting to paste: the rule by which every command recommends.

Rule, over settings that answer every request and save a hundredth of the peak or a retry:

1. Those that cost few driver calls go before those that thrash, then fewer retries decide, then
   the peak of reserved memory; of all within a hundredth of the least peak it is the simplest:
   known to every release that the recording can come from, fewest options, fewest driver calls.
2. A setting fitted to the sizes of this recording gives way to one that is not, unless it saves
   a twentieth more, however the recording began, and does so over the second half by itself as
   well; fitted values come from the first half (`proposals`), so that the second is their test.
3. Nothing is recommended where the replay is not the recorded run, or where something outside the
   allocator refused the request: there a replay proves nothing.

What is recommended was replayed on the same requests, device memory and release.  Another question,
and another rule: `tune --find-device` ranks by the smallest device (`Row.rank`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache

import numpy as np

from allocsim.core import RELEASES, Release
from allocsim.engine import (
    DeviceRun,
    Prepared,
    Setting,
    Standing,
    Trials,
    releases_needed,
    trial_of_run,
)
from allocsim.measures.cost import Costs, cost_of
from allocsim.measures.hopeless import overflows, was_refused
from allocsim.measures.offer import Offer
from allocsim.measures.proposals import is_fitted, proposals, rescues

__all__ = ["Case", "Recommendation", "WhyNot", "choose", "late_peak", "recommend"]

WORTH = 100
"""A setting is worth pasting from this part of the peak saved (1/100), and equals are as near."""

_FITTED_WORTH = 20
"""A fitted setting must save this part (1/20) beyond the best that is not fitted."""


class WhyNot(StrEnum):
    """Why nothing is recommended."""

    WITHHELD = "the replay is not the recorded run, so no setting can be proved on it"
    REFUSED = "the device had room, and what refused the request is there under every setting"
    IMPOSSIBLE = "the request alone is larger than the device"
    FULL = "what is in use at once is more than the device has"
    NO_GAIN = "hardly any memory is idle at the peak"
    NONE_HELPS = "no setting tried helps"


@dataclass(frozen=True, slots=True)
class Recommendation:
    """What a command recommends for the devices that it was asked about.

    baseline: the run as it is.
    best: the offer to paste; None if none helps or none can be proved, and `why_not` says why.
    offers: the settings that were tried and that PyTorch would survive.
    needs: which releases read the best as meant, in words; None where all do that the recording
        can come from.
    since: the oldest release that reads the best as meant; "" without one.
    is_by_size: whether requests alone were replayed, which nothing shows to be the recorded run.
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
        """What the best reserves less at its peak; negative where it answers more requests."""
        return self.baseline.memory - (self.best or self.baseline).memory

    @property
    def is_sure(self) -> bool:
        """Whether the best helps however a recording that starts mid-run began under it."""
        if self.best is None or self.is_by_size:
            return False
        low, high = self.best.memory_range
        saved = self.baseline.memory - high
        is_saving = low == high or (saved > 0 and saved * WORTH >= self.baseline.memory)
        return not self.baseline.goes_through or is_saving


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """One device that a recommendation is for: its replay, and the trials to compare with."""

    trials: Trials
    device_run: DeviceRun

    @property
    def prepared(self) -> Prepared:
        """The device, as the trials drive it."""
        return self.trials.prepared


def recommend(
    cases: Sequence[Case],
    setting: Setting,
    confs: Sequence[str] | None = None,
    *,
    insists: bool = False,
    in_full: bool = True,
) -> Recommendation:
    """The recommendation for devices of one program that were replayed under `setting`.

    Each keeps the device memory of its replay.  confs: choose among these; None: `proposals`, and
    where none of them rescues a run that fails, `rescues`.  insists: try settings although nothing
    can be proved by them.  in_full: replay to its end what cannot be the best any more, too; the
    recommendation is the same, but `offers` has less to tell.
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
        case.trials.note(setting, case.device_run)

    release = prepared[0].release
    needed = _needed_by(release, prepared[0].releases)

    def tried(each: Setting, found: Iterable[Offer]) -> Offer | None:
        standing = None if in_full else _standing(baseline, found, each, needed)
        return _offer(cases, each, setting, standing)

    def offered(settings: Iterable[Setting]) -> list[Offer]:
        found: list[Offer] = []
        for each in settings:
            offer = tried(each, found)
            if offer is not None:
                found.append(offer)
        # What was given up beside a simpler one counts again where that has lost since.
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
    """Why no setting can help one device, as far as that is known without a replay."""
    device_run = case.device_run
    if device_run.parting is not None:
        return WhyNot.WITHHELD
    if _is_refused(case):
        return WhyNot.REFUSED
    if any(oom.tried_bytes > oom.total_bytes for oom in device_run.ooms):
        return WhyNot.IMPOSSIBLE
    if device_run.ooms and overflows(case.prepared, device_run.device_memory):
        return WhyNot.FULL
    return None


def _has_gain(cases: Sequence[Case], baseline: Offer) -> bool:
    """Whether a setting can help at all: none reserves less than what is asked for at once."""
    asked = max(case.device_run.stats["requested_bytes.all.peak"] for case in cases)
    idle = baseline.memory - asked
    return not baseline.goes_through or baseline.retries > 0 or idle * WORTH >= baseline.memory


def _is_refused(case: Case) -> bool:
    ooms = case.device_run.ooms
    is_as_recorded = case.device_run.fidelity is not None
    return is_as_recorded and bool(ooms) and was_refused(case.prepared, ooms[0].entry)


def _standing(
    baseline: Offer,
    found: Iterable[Offer],
    setting: Setting,
    needed: Callable[[Setting], str | None],
) -> Standing | None:
    """What `setting` has to beat to be chosen; None while nothing goes through.

    needed: see `_simplest`, whose choice this foretells.
    """
    known = [Standing(baseline.memory, baseline.retries)] if baseline.goes_through else []
    good = [
        offer
        for offer in found
        if helps(baseline, offer) and not offer.is_fitted and not offer.thrashes(baseline)
    ]
    if good:
        near = _nearest(baseline, good)
        simpler = [
            offer.memory
            for offer in near
            if offer.setting.n_options < setting.n_options and needed(offer.setting) is None
        ]
        # Of those within a hundredth of the least the simplest is chosen.
        least = min(offer.memory for offer in near)
        most = min(simpler) * WORTH // (WORTH + 1) if simpler else least + least // WORTH
        known.append(Standing(most, near[0].retries))
    return min(known, key=lambda each: (each.retries, each.memory), default=None)


def _offer(
    cases: Sequence[Case], setting: Setting, base: Setting, standing: Standing | None
) -> Offer | None:
    """None where PyTorch refuses the setting or would not survive it."""
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
    """The recommendation among `offers`.

    late: the peak of a setting over the second half of the recording, in bytes (`late_peak`).
    possible: the releases that the recording can come from; `release` is the modelled one.
    """
    tried, late = tuple(offers), cache(late)  # each is a replay
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
    """Whether a setting is worth pasting: the run goes through, or saves memory or retries."""
    if not offer.goes_through:
        return False
    if not baseline.goes_through:
        return True
    if offer.retries != baseline.retries:
        return offer.retries < baseline.retries
    saved = baseline.memory - offer.memory
    return saved > 0 and saved * WORTH >= baseline.memory and not offer.thrashes(baseline)


def _order(baseline: Offer, offer: Offer) -> tuple[bool, int, int]:
    return offer.thrashes(baseline), offer.retries, offer.memory


def _nearest(baseline: Offer, offers: Sequence[Offer]) -> list[Offer]:
    """Those of some offers that the simplest is chosen from (rule 1)."""
    thrashes, retries, least = min(_order(baseline, offer) for offer in offers)
    return [
        offer
        for offer in offers
        if _order(baseline, offer)[:2] == (thrashes, retries)
        and (offer.memory - least) * WORTH <= least
    ]


def _needed_by(release: Release, possible: Sequence[str]) -> Callable[[Setting], str | None]:
    """What says which releases read a setting as meant: see `releases_needed`."""
    return lambda each: releases_needed(each.conf, release, possible)


def _simplest(
    baseline: Offer, offers: Sequence[Offer], needed: Callable[[Setting], str | None]
) -> Offer | None:
    """The simplest of those within a hundredth of the best.  needed: see `releases_needed`."""
    if not offers:
        return None
    near = _nearest(baseline, offers)
    known = [offer for offer in near if needed(offer.setting) is None]
    # Of equals it is the first: a search that replays settings of equal effect once has only that.
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
        return True  # whatever the peaks of the second half: one is no higher, one no lower
    return _saves(late(offer.setting), late(standing.setting))


def _saves(memory: int, before: int) -> bool:
    return (before - memory) * _FITTED_WORTH > before


def late_peak(trials: Trials, setting: Setting, device_memory: int | None) -> int:
    """The most that is reserved over the second half of the entries, in bytes."""
    _, timeline = trials.timeline(setting, device_memory)
    if timeline is None:
        return 0
    half = len(trials.prepared.trace) // 2
    # What is reserved in the row before is so still at the half's first entry.
    start = max(int(np.searchsorted(timeline.entry, half, side="right")) - 1, 0)
    return int(timeline.reserved[start:].max(initial=0))


def _since(conf: str, release: Release) -> str:
    """The oldest release from which on `conf` is read as `release` reads it."""
    versions = list(RELEASES)
    at = versions.index(release.version)
    while at and releases_needed(conf, release, versions[at - 1 : at]) is None:
        at -= 1
    return versions[at]
