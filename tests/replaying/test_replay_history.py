"""Comparisons by rows and by entries agree, for sound and damaged recordings."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from allocsim import CachingAllocator, fidelity, replay
from allocsim.fidelity import Compared, Expected, FidelityCheck
from allocsim.recording import Action, Trace
from allocsim.replaying import Prepared, prepare
from allocsim.replaying.baseline import unstarted_drive
from allocsim.results import Recording
from allocsim.simulation import Fidelity, Observer, Plan
from allocsim.simulation.plan import StepKind
from allocsim.units import MIB
from allocsim.workload import graphs, oom, streams, training

KINDS: dict[str, Callable[[], Recording]] = {
    "training": lambda: training(entries=5000),
    "two streams": lambda: streams(steps=40),
    "private pools": graphs,
    "out of memory": oom,
}


class Keeps(Observer):
    """Observer that keeps the history, so that the check receives entries."""

    keeps_history = True


def verdict(
    prepared: Prepared, check: FidelityCheck, plan: Plan, *observers: Observer
) -> tuple[Fidelity, bool]:
    """Run `plan` with `check`, and return the result and whether rows were compared."""
    drive, _, _ = unstarted_drive(prepared, prepared.recorded, None, observers=observers)
    drive.fidelity, drive.plan = check, plan
    drive.run()
    return check.result(drive.allocator), drive.keeps_rows


def compared(prepared: Prepared, trace: Trace, plan: Plan) -> Fidelity:
    """Return the result for `trace`, after checking that three ways to compare agree.

    Entries are compared, or steps without expected entries, or steps with expected entries.
    """
    by_rows, is_by_rows = verdict(prepared, FidelityCheck(trace), plan)
    by_entries, is_not = verdict(prepared, FidelityCheck(trace), plan, Keeps())
    expected = Expected.of(Compared.of(trace), plan.steps)
    as_expected, _ = verdict(prepared, FidelityCheck(trace, expected), plan)
    assert is_by_rows
    assert not is_not
    assert by_rows == by_entries == as_expected
    return by_rows


def damaged(trace: Trace, rng: random.Random) -> Trace:
    """Return `trace` with a change: a number, an entry missing or twice, cut or extended."""
    at = rng.randrange(len(trace))
    columns = {name: column.copy() for name, column in trace.columns().items()}
    numbers = ("addr", "size", "stream", "action")
    damage = rng.choice((*numbers, "shorter", "longer", "missing", "twice"))
    if damage == "missing":
        columns = {name: np.delete(column, at) for name, column in columns.items()}
    elif damage == "twice":
        columns = {name: np.insert(column, at, column[at]) for name, column in columns.items()}
    elif damage == "shorter":
        columns = {name: column[:at] for name, column in columns.items()}
    elif damage == "longer":
        columns = {name: np.append(column, column[at:]) for name, column in columns.items()}
    elif damage == "action":
        columns["action"][at] = (int(trace.action[at]) + 1) % (Action.OOM + 1)
    else:
        columns[damage][at] += 512
    return replace(trace, **columns)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_comparisons_agree_on_sound_and_damaged_recordings(kind: str) -> None:
    (prepared,) = prepare(KINDS[kind]())
    trace, plan = prepared.trace, prepared.plan
    assert compared(prepared, trace, plan).is_exact
    rng = random.Random(5)
    for _ in range(24):
        found = compared(prepared, damaged(trace, rng), plan)
        assert found.first_mismatch is not None


@pytest.mark.parametrize("kind", KINDS)
def test_sound_recording_is_compared_without_creating_entries(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (prepared,) = prepare(KINDS[kind]())

    def made(*_: Any) -> Any:
        pytest.fail("entries are made of steps")

    monkeypatch.setattr(fidelity, "rows_of", made)
    found, _ = verdict(prepared, FidelityCheck(prepared.trace, prepared.expected), prepared.plan)
    assert found.is_exact


def test_moved_block_is_found_at_its_request() -> None:
    """All entries of the recording use the moved address; the replay places the block elsewhere."""
    (prepared,) = prepare(KINDS["training"]())
    trace, steps = prepared.trace, prepared.plan.steps
    at = int(np.flatnonzero(trace.action == Action.ALLOC)[900])
    other = np.uint64(trace.addr[at] + 512)
    moved, named = trace.addr.copy(), steps.addr.copy()
    moved[trace.addr == trace.addr[at]] = named[steps.addr == trace.addr[at]] = other
    plan = replace(prepared.plan, steps=replace(steps, addr=named))
    found = compared(prepared, replace(trace, addr=moved), plan)
    assert found.first_mismatch is not None
    assert f"{other:#x}" in found.first_mismatch.expected


def test_additional_entry_between_plain_steps_is_found() -> None:
    (prepared,) = prepare(KINDS["training"]())
    trace, steps = prepared.trace, prepared.plan.steps
    at = int(np.flatnonzero(trace.action == Action.ALLOC)[900])
    columns = {name: np.insert(column, at, column[at]) for name, column in trace.columns().items()}
    columns["action"][at] = Action.SEGMENT_FREE
    later = steps.entry + (steps.entry >= at)
    plan = replace(prepared.plan, steps=replace(steps, entry=later))
    found = compared(prepared, replace(trace, **columns), plan)  # type: ignore[arg-type]
    assert found.entries_matched == at
    assert found.first_mismatch is not None
    assert "segment_free" in found.first_mismatch.expected


def test_recording_that_ends_within_a_step_is_compared_to_its_end(
    recorded: Callable[..., Recording],
) -> None:
    def program(a: CachingAllocator) -> None:
        a.malloc(6 * MIB)
        a.malloc(60 * MIB)

    (prepared,) = prepare(recorded(program))
    trace = prepared.trace
    cut = {name: column[:-1] for name, column in trace.columns().items()}
    found = compared(prepared, replace(trace, **cut), prepared.plan)  # type: ignore[arg-type]
    assert found.entries_matched == len(trace) - 1


def with_other_free(plan: Plan, change: str) -> Plan:
    """Return `plan` with one free changed."""
    steps = plan.steps
    frees = np.flatnonzero(np.isin(steps.kind, (StepKind.FREE, StepKind.FREE_REQUEST)))
    column = getattr(steps, change).copy()
    column[frees[len(frees) // 2]] += 512
    return replace(plan, steps=replace(steps, **{change: column}))


@pytest.mark.parametrize("change", ["addr", "size", "stream"])
def test_changed_free_leaves_the_entries_of_its_block(change: str) -> None:
    """With another size or stream, the entries are the same. Without a block, there are none."""
    (prepared,) = prepare(streams(steps=20))
    found = compared(prepared, prepared.trace, with_other_free(prepared.plan, change))
    assert found.is_exact is (change != "addr")


def test_recorded_error_that_succeeds_is_not_compared(
    recorded: Callable[..., Recording],
) -> None:
    """The replayed device has more memory, so the request succeeds.

    Its block is freed, and later requests are compared with their own entries.
    """

    def program(a: CachingAllocator) -> None:
        a.malloc(6 * MIB)
        with pytest.raises(RuntimeError, match="out of memory"):
            a.malloc(60 * MIB)
        for _ in range(3):
            a.malloc(3 * MIB)

    (prepared,) = prepare(recorded(program, "50MiB"))
    plan = replace(prepared.plan, capacity=200 * MIB)
    prepared.__dict__["plan"] = plan
    found = compared(prepared, prepared.trace, plan)
    assert found.first_mismatch is not None
    assert "oom" in found.first_mismatch.expected
    assert found.addresses_matched == found.allocations == 4


def test_addresses_above_half_of_the_address_space_are_proved(
    written: Callable[[Any], Recording],
) -> None:
    """Addresses and streams are unsigned in the recording and in the model."""
    a = CachingAllocator("1GiB", record_history=True)
    kept = [a.malloc(size) for size in range(1 << 20, 1 << 22, 1 << 18)]
    for ptr in kept[::2]:
        a.free(ptr)
    snapshot = a.snapshot()
    half = 1 << 63
    for entry in snapshot["device_traces"][0]:
        entry["addr"] += half
    for segment in snapshot["segments"]:
        segment["address"] += half
        for block in segment["blocks"]:
            block["address"] += half
    (run,) = replay(written(snapshot)).devices
    assert run.fidelity is not None
    assert run.fidelity.is_exact
