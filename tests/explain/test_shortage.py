"""Cause of an out-of-memory error by figures and by blocks."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from allocsim.analysis.explain import OomWatch, Shortage, shortages_of
from allocsim.analysis.explain.cause import Figures
from allocsim.analysis.explain.shortage import Findings, most_specific_cause
from allocsim.recording import Action, Recording, load
from allocsim.replaying import replay
from allocsim.simulation import DeviceRun
from allocsim.units import GIB, MIB

TRACES = Path(__file__).parents[2] / "traces"


@pytest.fixture(scope="module")
def recording() -> Recording:
    """Load a run that ends with an error: 694 MiB tried, 462 MiB idle, 396 MiB free."""
    return load(TRACES / "gpt2-ragged-oom-torch2.15.pickle.gz")


@pytest.fixture(scope="module")
def watch() -> OomWatch:
    """Return the observer of `device_run`."""
    return OomWatch()


@pytest.fixture(scope="module")
def device_run(recording: Recording, watch: OomWatch) -> DeviceRun:
    """Replay the recording."""
    return replay(recording, observers=(watch,)).devices[0]


@pytest.fixture(scope="module")
def shortage(recording: Recording, watch: OomWatch, device_run: DeviceRun) -> Shortage:
    """Return the only error."""
    (found,) = shortages_of(device_run, recording.devices[0], watch)
    return found


def cause_of(device_run: DeviceRun, **changes: object) -> str:
    """Return the cause of a changed error, by its figures alone."""
    oom = dataclasses.replace(device_run.ooms[0], **changes)  # type: ignore[arg-type]
    return shortages_of(dataclasses.replace(device_run, ooms=(oom,)))[0].cause


def test_the_figures_are_those_of_pytorch_s_text(shortage: Shortage) -> None:
    assert shortage.cause == "fragmentation_likely"
    assert shortage.tried_bytes == 694 * MIB
    assert shortage.figures.free_bytes == 396 * MIB
    assert round(shortage.idle_bytes / MIB, 2) == 462.32
    assert shortage.figures.idle_and_free == shortage.idle_bytes + 396 * MIB


def test_cause_is_the_first_comparison_that_holds(device_run: DeviceRun) -> None:
    assert cause_of(device_run, tried_bytes=6 * GIB) == "impossible"
    assert cause_of(device_run, limit_bytes=5 * GIB) == "fraction_limit"
    assert cause_of(device_run, tried_bytes=20 * MIB) == "free_above_request"
    assert cause_of(device_run, tried_bytes=460 * MIB) == "fragmentation"
    assert cause_of(device_run, tried_bytes=900 * MIB) == "full"


def test_cause_is_unknown_without_device_memory_unless_idle_memory_suffices(
    device_run: DeviceRun,
) -> None:
    unknown = dataclasses.replace(device_run, device_memory=None)
    assert cause_of(unknown) == "no_figures"
    assert cause_of(unknown, tried_bytes=400 * MIB) == "fragmentation"


@pytest.mark.parametrize(
    ("figures", "late", "private", "cause"),
    [
        (Figures(tried_bytes=30, total_bytes=20), 30, True, "impossible"),
        (Figures(tried_bytes=30, idle_bytes=40), 40, True, "pending_free"),
        (Figures(tried_bytes=30, free_bytes=40, total_bytes=90), 30, True, "pending_free"),
        (Figures(tried_bytes=30, free_bytes=40, total_bytes=90), 0, True, "free_above_request"),
        (Figures(tried_bytes=30, free_bytes=9, idle_bytes=40), 0, True, "private_pool"),
        (Figures(tried_bytes=30, free_bytes=9, idle_bytes=40), 0, False, "fragmentation"),
    ],
)
def test_blocks_give_a_more_specific_cause_than_sizes(
    figures: Figures, late: int, private: bool, cause: str
) -> None:
    findings = Findings({}, 0, late, private, None, {})
    assert most_specific_cause(figures, findings) == cause


def test_shortage_of_a_what_if_replay_has_the_sizes_of_the_replay(recording: Recording) -> None:
    device = replay(recording, device_memory="4GiB").devices[0]
    (found,) = shortages_of(device, recording.devices[0])
    assert device.stopped_at == found.oom.entry
    assert found.oom.reserved_bytes + found.oom.free_bytes == 4 * GIB
    assert found.oom.reserved_bytes == device.stats["reserved_bytes.all.current"]


def test_the_code_of_the_request_is_inferred_and_marked_so(shortage: Shortage) -> None:
    # The longer recording of the same program allocates here from autograd's thread, which has
    # no Python frames either; the last line with frames is the call of backward().
    code = shortage.code
    assert code is not None
    assert (code.frame.filename, code.frame.line) == ("gpt.py", 27)
    assert code.inferred == "the allocation before it, entry 26,055"


def test_blockers_have_their_age_and_the_users_line(
    shortage: Shortage, recording: Recording
) -> None:
    trace = recording.devices[0]
    largest = shortage.blockers[0]
    assert (largest.size, largest.entry, largest.age) == (77194752, 25914, 145)
    assert sum(blocker.size for blocker in shortage.blockers) == 196_609_536
    for blocker in shortage.blockers:
        assert blocker.entry is not None
        entry = trace[blocker.entry]
        assert (entry.action, entry.size) == (Action.ALLOC, blocker.requested_bytes)
        assert blocker.code is not None
        assert blocker.code.frame.filename == "gpt.py"


def test_recorded_error_that_the_replay_avoids_is_reported(
    recording: Recording, device_run: DeviceRun
) -> None:
    answered = dataclasses.replace(device_run, ooms=())
    (found,) = shortages_of(answered, recording.devices[0])
    assert (found.oom.entry, found.oom.rounded_bytes) == (26059, 726917632)
    assert found.figures.free_bytes == 396 * MIB
    assert found.findings is None
    assert found.cause == "fragmentation_likely"
