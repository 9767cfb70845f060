"""Pinned memory of a recording of torch 2.15: owners, reasons for growth, and the model's choices.

`loader.py` is the program.  It keeps three blocks, and each batch of 2 MiB waits for its copy until
the stream is synchronized, after every tenth batch.
"""

from __future__ import annotations

import dataclasses
import gzip
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from allocsim.analysis.explain import explain_host
from allocsim.analysis.top import top_host
from allocsim.errors import RecordingError
from allocsim.host import CachingHostAllocator, GrowthCause, follow
from allocsim.recording import HOST, Action, load_host
from allocsim.units import MIB
from tests.host.real import DATA

LOADER = DATA / "loader.pickle.gz"
STREAM = 4096


@pytest.fixture(scope="module")
def snapshot() -> dict[str, Any]:
    value: dict[str, Any] = pickle.loads(gzip.decompress(LOADER.read_bytes()))
    return value


def test_host_traces_are_read_as_device_minus_1(snapshot: dict[str, Any]) -> None:
    trace = load_host(LOADER)
    assert trace.device == HOST
    actions = [entry.action.text for entry in trace]
    assert actions == [entry["action"] for entry in snapshot["host_traces"]]
    assert [entry.addr for entry in trace] == [e["addr"] for e in snapshot["host_traces"]]
    assert len(trace.segments) == len(snapshot["host_segments"])


def test_follow_has_the_peak_of_the_entries(snapshot: dict[str, Any]) -> None:
    live, pinned = dict[int, int](), dict[int, int]()
    most_live = most_pinned = 0
    for entry in snapshot["host_traces"]:
        action, at = entry["action"], entry["addr"]
        if action == "alloc":
            live[at] = entry["size"]
        elif action == "free_requested":
            del live[at]
        elif action == "segment_alloc":
            pinned[at] = entry["size"]
        elif action == "segment_free":
            del pinned[at]
        most_live = max(most_live, sum(live.values()))
        most_pinned = max(most_pinned, sum(pinned.values()))
    course = follow(load_host(LOADER))
    assert course.peak_in_use.in_use == most_live
    assert course.peak.pinned == most_pinned
    assert course.end.pinned == sum(pinned.values())
    top = top_host("loader", load_host(LOADER))
    assert (top.allocated_bytes, top.blocks) == (most_live, 4)
    assert [(row.owner, row.bytes) for row in top.rows] == [("loader.py:14 load", most_live)]
    end = top_host("loader", load_host(LOADER), "end", by="stack")
    assert end.allocated_bytes == sum(live.values())


def test_growth_equals_that_of_the_model() -> None:
    host = CachingHostAllocator(record_history=True)
    kept = [host.malloc(700_000) for _ in range(3)]
    for step in range(40):
        batch = host.malloc(1_500_000 + 20_000 * (step % 7))
        assert batch is not None
        host.record_event(batch, STREAM)
        host.free(batch)
        if step % 10 == 9:
            host.synchronize(STREAM)
    host.free(kept[1])
    host.empty_cache()
    host.malloc(100)
    trace = load_host(LOADER)
    assert [entry.action for entry in host.history] == [entry.action.text for entry in trace]
    assert [entry.size for entry in host.history] == trace.size.tolist()


def test_growth_has_its_cause() -> None:
    answer = explain_host("loader", load_host(LOADER))
    # Nine batches of ten found the blocks before them waiting; the first sizes were new.
    assert answer.causes == {
        GrowthCause.WAITING: 18 * MIB,
        GrowthCause.FIRST: MIB + 2 * MIB + 128,
        GrowthCause.IN_USE: 2 * MIB,
    }
    assert sum(row.bytes for row in answer.lines) == sum(answer.causes.values())
    assert answer.advice[0].startswith("copies were slower than the frees: synchronize")
    assert answer.course.agreed == answer.course.checked == answer.course.requests == 44


def test_follow_counts_a_choice_against_the_rule() -> None:
    trace = load_host(LOADER)
    address = trace.addr.copy()
    reuse = [
        entry
        for entry in np.flatnonzero(trace.action == Action.ALLOC)
        if trace.action[entry - 1] != Action.SEGMENT_ALLOC
    ]
    first, second = reuse[0], reuse[1]
    swap = {address[first]: address[second], address[second]: address[first]}
    for entry in range(first, len(address)):
        address[entry] = swap.get(address[entry], address[entry])
    course = follow(dataclasses.replace(trace, addr=address))
    assert course.agreed < course.checked


def test_block_from_before_the_recording_has_its_first_state() -> None:
    trace = load_host(LOADER)
    cut = int(np.flatnonzero(trace.action == Action.FREE_REQUESTED)[5])
    columns: dict[str, Any] = {name: column[cut:] for name, column in trace.columns().items()}
    late, full = follow(dataclasses.replace(trace, **columns)), follow(trace)
    assert late.start.pinned == follow(trace, cut).end.pinned
    assert (late.end.in_use, late.end.pinned) == (full.end.in_use, full.end.pinned)


def test_load_host_refuses_a_snapshot_without_pinned_memory(tmp_path: Path) -> None:
    old = tmp_path / "old.pickle"
    old.write_bytes(pickle.dumps({"segments": [], "device_traces": []}))
    with pytest.raises(RecordingError, match="has no pinned host memory; record_pinned_host"):
        load_host(old)
    empty = tmp_path / "empty.pickle"
    empty.write_bytes(pickle.dumps({"segments": [], "host_segments": [], "host_traces": []}))
    with pytest.raises(RecordingError, match="has an empty history of pinned host memory"):
        load_host(empty)
    text = tmp_path / "rows.csv"
    text.write_text("action,addr,size\nalloc,1,2\n")
    with pytest.raises(RecordingError, match="is no snapshot as a pickle or JSON"):
        load_host(text)
    with pytest.raises(RecordingError, match="pinned memory has no moment 'oom'"):
        top_host("loader", load_host(LOADER), "oom")
    with pytest.raises(RecordingError, match="entry 151 does not exist"):
        top_host("loader", load_host(LOADER), 151)
