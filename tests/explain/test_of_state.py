"""Requests in a snapshot's state: the model's result, and the owners of blocks in the way."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from allocsim.analysis.explain import Refusal, StateExplanation, explain_state
from allocsim.recording import Recording
from allocsim.report.explain_state import screen
from allocsim.state import PENDING
from allocsim.units import GIB, MIB
from allocsim.workload.recorder import Recorder

SIZES = (4, 4, 4, 4, 4, 1060)  # MiB of five blocks in a segment of 20 MiB, and of a whole segment


@pytest.fixture(scope="module")
def state() -> Recording:
    """Return a state with five blocks of 4 MiB in a segment of 20, and a cached segment of 100 MiB.

    The blocks belong to two lines alternately, and the second and fourth are freed.
    """
    recorder = Recorder("1GiB")
    lines = [recorder.code("net.py", "forward", 3), recorder.code("adam.py", "step", 9)]
    live = [recorder.malloc(4 * MIB, lines[i > 1]) for i in range(5)]
    whole = recorder.malloc(100 * MIB, lines[0])
    for address in (live[1], live[3], whole):
        recorder.free(address, lines[0])
    recording = recorder.recording("test", {})
    (trace,) = recording.devices
    none: dict[str, Any] = {name: column[:0] for name, column in trace.columns().items()}
    return replace(recording, devices=(replace(trace, **none),))


def asked(recording: Recording, request: int, **options: Any) -> StateExplanation:
    return explain_state(recording, recording.devices[0], request, **options)


def refused(recording: Recording, request: int, **options: Any) -> Refusal:
    found = asked(recording, request, **options)
    assert (found.served, found.refusal is None) == ("", False)
    assert found.refusal is not None
    return found.refusal


@pytest.mark.parametrize(
    ("request_bytes", "memory", "served"),
    [
        (4 * MIB, None, "cached"),
        (100 * MIB, None, "cached"),
        (101 * MIB, GIB, "driver"),
        (101 * MIB, 124 * MIB, "retry"),
    ],
)
def test_state_explanation_names_the_source_of_a_requests_memory(
    state: Recording, request_bytes: int, memory: int | None, served: str
) -> None:
    found = asked(state, request_bytes, device_memory=memory)
    assert (found.served, found.refusal) == (served, None)


def test_the_largest_request_is_that_of_the_whole_state(state: Recording) -> None:
    assert asked(state, 1).largest_request_bytes == 100 * MIB
    assert asked(state, GIB).largest_request_bytes == 100 * MIB, "whether or not one failed"


def test_the_blocks_in_the_way_are_those_of_the_segment_that_would_go_back(
    state: Recording,
) -> None:
    refusal = refused(state, 110 * MIB)
    assert refusal.cause == "full", "8 MiB idle and 100 that went back are less than 110"
    assert [(b.size, str(b.code), b.entry) for b in refusal.blockers] == [
        (4 * MIB, "net.py:3 forward", None),
        (4 * MIB, "adam.py:9 step", None),
        (4 * MIB, "adam.py:9 step", None),
    ]
    assert sum(refusal.findings.kinds.values()) == 120 * MIB, "every byte is of a kind"


def test_only_a_device_that_is_named_can_be_too_small(state: Recording) -> None:
    assert refused(state, 5 * GIB).cause == "full"
    assert refused(state, 5 * GIB, device_memory=GIB).cause == "impossible"


def test_pending_block_counts_as_late(state: Recording) -> None:
    (trace,) = state.devices
    segment = next(each for each in trace.segments if not each.is_idle)
    blocks = list(segment.blocks)
    blocks[2] = replace(blocks[2], state=PENDING)
    alone = replace(trace, segments=(replace(segment, blocks=tuple(blocks)),))
    refusal = refused(replace(state, devices=(alone,)), 11 * MIB)
    assert (refusal.cause, refusal.findings.late_bytes) == ("pending_free", 12 * MIB)


def test_free_memory_of_a_retry_is_named_and_equal_sizes_have_bytes() -> None:
    recorder = Recorder("4GiB")
    live = [recorder.malloc(size * MIB, recorder.code("net.py", "forward", 3)) for size in SIZES]
    for address in (live[1], live[3], live[-1]):
        recorder.free(address, recorder.code("net.py", "forward", 3))
    recording = recorder.recording("test", {})
    found = explain_state(recording, recording.devices[0])
    said = " ".join(str(screen(found)).split())
    assert "if the driver has no free memory before a retry: 1.04 GiB tried <= 1.04 GiB" in said
    assert "the retry releases 1.04 GiB" in said
    assert f"({1062 * MIB:,} bytes tried, {1060 * MIB:,} free)" in said
