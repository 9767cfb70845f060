"""Random recordings: programs drawn by Hypothesis and run by the model."""

from __future__ import annotations

import contextlib
from typing import Any

from hypothesis import strategies as st

from allocsim import CachingAllocator, OutOfMemoryError
from allocsim.core import RELEASES
from allocsim.recording import Recording, read_snapshot

__all__ = ["recordings"]

_FRAMES = st.lists(
    st.builds(
        lambda filename, name, line: {"filename": filename, "name": name, "line": line},
        st.text(max_size=8),
        st.sampled_from(["forward", "step", "=1+1", 'a,"b"\n', "\ud800"]),
        st.integers(0, 1 << 20),
    ),
    max_size=3,
)
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("alloc"), st.integers(1, 60 << 20), st.sampled_from([0, 4096])),
        st.tuples(st.just("free"), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("empty"), st.just(0), st.just(0)),
    ),
    min_size=1,
    max_size=30,
)


def _played(steps: list[Any], release: str, conf: str) -> dict[str, Any]:
    allocator = CachingAllocator("200MiB", conf, release, record_history=True)
    live: list[int] = []
    for what, number, stream in steps:
        if what == "alloc":
            with contextlib.suppress(OutOfMemoryError):
                address = allocator.malloc(number, stream)
                assert address is not None
                live.append(address)
        elif what == "free" and live:
            allocator.free(live.pop(number % len(live)))
        elif what == "empty":
            allocator.empty_cache()
    return allocator.snapshot()


@st.composite
def recordings(draw: st.DrawFn) -> Recording:
    """Draw a recording of some release, with random stacks."""
    release = draw(st.sampled_from(list(RELEASES)))
    conf = draw(st.sampled_from(["", "expandable_segments:True", "max_split_size_mb:32"]))
    snapshot = _played(draw(_STEPS), release, conf)
    stacks = draw(st.lists(_FRAMES, min_size=1, max_size=3))
    for number, entry in enumerate(snapshot["device_traces"][0]):
        entry["frames"] = stacks[number % len(stacks)]
    for number, segment in enumerate(snapshot["segments"]):
        for block in segment["blocks"]:
            if block["state"] != "active_allocated":
                continue
            block["frames"] = stacks[number % len(stacks)]
    return read_snapshot("drawn", snapshot, 1 << 30)
