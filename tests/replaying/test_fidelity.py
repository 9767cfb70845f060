"""Every change of a recording is found, and reported at its place."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from allocsim import CachingAllocator, replay
from allocsim.recording import Recording
from allocsim.simulation import Fidelity
from allocsim.units import MIB

Written = Callable[[Any], Recording]


@pytest.fixture
def snapshot() -> dict[str, Any]:
    """Return 12 entries: three blocks in two segments, one freed and allocated again."""
    a = CachingAllocator("1GiB", record_history=True)
    a.malloc(6 * MIB)
    second = a.malloc(6 * MIB)
    a.malloc(1000)
    a.free(second)
    a.malloc(5 * MIB)
    a.malloc(3 * MIB)
    a.malloc(700)
    return copy.deepcopy(a.snapshot())


def verdict(recording: Recording) -> Fidelity:
    fidelity = replay(recording).devices[0].fidelity
    assert fidelity is not None
    return fidelity


def entry_of(snapshot: dict[str, Any], action: str, number: int) -> dict[str, Any]:
    trace: list[dict[str, Any]] = snapshot["device_traces"][0]
    return [entry for entry in trace if entry["action"] == action][number]


def block_at(snapshot: dict[str, Any], address: int) -> dict[str, Any]:
    blocks: list[dict[str, Any]] = [
        block for segment in snapshot["segments"] for block in segment["blocks"]
    ]
    return next(block for block in blocks if block["address"] == address)


def test_unchanged_recording_is_exact(snapshot: dict[str, Any], written: Written) -> None:
    assert verdict(written(snapshot)).is_exact


def test_other_address_is_found(snapshot: dict[str, Any], written: Written) -> None:
    """The recorded address is 512 bytes above the address of the model."""
    moved = entry_of(snapshot, "alloc", -1)
    block = block_at(snapshot, moved["addr"])
    tail = block_at(snapshot, moved["addr"] + block["size"])
    segment = next(s for s in snapshot["segments"] if block in s["blocks"])
    at = segment["blocks"].index(block)
    gap = {**tail, "address": block["address"], "size": 512}
    moved["addr"] += 512
    block["address"] += 512
    tail["address"] += 512
    tail["size"] -= 512
    segment["blocks"].insert(at, gap)
    found = verdict(written(snapshot))
    assert found.addresses_matched == found.allocations - 1
    assert found.first_mismatch is not None
    assert found.first_mismatch.entry == snapshot["device_traces"][0].index(moved)
    assert f"at {moved['addr']:#x}" in found.first_mismatch.expected
    assert f"at {moved['addr'] - 512:#x}" in found.first_mismatch.got
    assert found.segments_matched == found.segments - 1


def test_additional_segment_is_found(snapshot: dict[str, Any], written: Written) -> None:
    extra = {**entry_of(snapshot, "segment_alloc", 0), "addr": 1 << 40, "size": 2 * MIB}
    snapshot["device_traces"][0].append(extra)
    snapshot["segments"].append(
        {
            **snapshot["segments"][0],
            "address": 1 << 40,
            "total_size": 2 * MIB,
            "segment_type": "small",
            **dict.fromkeys(("allocated_size", "active_size", "requested_size"), 0),
            "blocks": [
                {"address": 1 << 40, "size": 2 * MIB, "requested_size": 0, "state": "inactive"}
            ],
        }
    )
    found = verdict(written(snapshot))
    assert found.first_mismatch is not None
    assert found.first_mismatch.got == "no further entry"
    assert found.segments_matched == found.segments - 1


def test_segment_of_another_size_is_found(snapshot: dict[str, Any], written: Written) -> None:
    grown = entry_of(snapshot, "segment_alloc", -1)
    segment = next(s for s in snapshot["segments"] if s["address"] == grown["addr"])
    grown["size"] += 2 * MIB
    segment["total_size"] += 2 * MIB
    last = segment["blocks"][-1]
    assert last["state"] == "inactive"
    last["size"] += 2 * MIB
    found = verdict(written(snapshot))
    assert found.first_mismatch is not None
    assert found.first_mismatch.entry == snapshot["device_traces"][0].index(grown)
    assert found.first_mismatch.expected.startswith(f"segment_alloc of {4 * MIB} bytes")
    assert found.first_mismatch.got.startswith(f"segment_alloc of {2 * MIB} bytes")


def test_request_size_is_an_input(snapshot: dict[str, Any], written: Written) -> None:
    """701 bytes round to the same size as 700, so the changed recording is exact too."""
    live = block_at(snapshot, entry_of(snapshot, "alloc", -1)["addr"])
    live["requested_size"] += 1
    entry_of(snapshot, "alloc", -1)["size"] += 1
    assert verdict(written(snapshot)).is_exact
