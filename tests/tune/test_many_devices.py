"""A recording of many devices is read and checked once, not once per device."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import pytest

from allocsim import tune
from allocsim.analysis.tune import worker
from allocsim.recording import find_defects
from allocsim.units import MIB

N_DEVICES = 40


def many_devices() -> dict[str, Any]:
    """Record a segment and a block on each device."""
    segments, traces = [], []
    for device in range(N_DEVICES):
        at = {"addr": (device + 1) << 36, "stream": 0, "frames": []}
        block = {"size": 512, "requested_size": 512, "state": "active_allocated"}
        rest = {"size": 2 * MIB - 512, "requested_size": 0, "state": "inactive"}
        segments.append(
            {
                "address": at["addr"], "total_size": 2 * MIB, "allocated_size": 512,
                "active_size": 512, "stream": 0, "device": device, "segment_type": "small",
                "blocks": [block, rest],
            }
        )  # fmt: skip
        traces.append(
            [
                {"action": "segment_alloc", "size": 2 * MIB, **at},
                {"action": "alloc", "size": 512, **at},
            ]
        )
    return {"segments": segments, "device_traces": traces}


def test_the_work_grows_with_the_devices_and_not_with_their_square(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.pickle"
    path.write_bytes(pickle.dumps(many_devices()))
    counts = {"loads": 0, "devices": 0}
    load, about = vars(worker)["load"], lint_internals()._about_device

    def counted_load(*words: Any, **named: Any) -> Any:
        counts["loads"] += 1
        return load(*words, **named)

    def counted_about(*words: Any, **named: Any) -> Any:
        counts["devices"] += 1
        return about(*words, **named)

    monkeypatch.setattr(worker, "load", counted_load)
    monkeypatch.setattr(lint_internals(), "_about_device", counted_about)
    found = tune([path], confs=["max_split_size_mb:128"], jobs=1)
    assert len(found.baseline.parts) == N_DEVICES
    assert counts["loads"] <= 1
    assert counts["devices"] <= 3 * N_DEVICES


def lint_internals() -> Any:
    """Return the module that defines `find_defects`."""
    return sys.modules[find_defects.__module__]
