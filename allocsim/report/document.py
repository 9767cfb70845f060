"""The JSON twin of each report, as plain dictionaries.

Rule: keys are added, never renamed; sizes are integers in bytes; what is unknown is null.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from allocsim.analysis import Shortage
from allocsim.engine import DeviceRun, Fidelity, Run
from allocsim.tuning import Cure, Trial

__all__ = ["replay_document"]


def replay_document(
    run: Run, shortages: Mapping[int, Sequence[Shortage]], cures: Mapping[int, Cure]
) -> dict[str, Any]:
    """`allocsim replay --json`.  shortages, cures: by device number, where there are any."""
    return {
        "file": run.path,
        "conf": run.conf,
        "torch_version": run.torch_version,
        "device_memory": run.device_memory,
        "notes": list(run.notes),
        "devices": [
            _device(device, shortages.get(device.device, ()), cures.get(device.device))
            for device in run.devices
        ],
    }


def _device(device: DeviceRun, shortages: Sequence[Shortage], cure: Cure | None) -> dict[str, Any]:
    document: dict[str, Any] = {
        "device": device.device,
        "entries": device.entries,
        "peak_allocated_bytes": device.peak_allocated_bytes,
        "peak_reserved_bytes": device.peak_reserved_bytes,
        "peak": {
            "entry": device.peak.entry,
            "reserved_bytes": device.peak.reserved,
            "allocated_bytes": device.peak.allocated,
            "active_bytes": device.peak.active,
            "idle_bytes": device.peak.idle,
            "inactive_split_bytes": device.peak.inactive_split,
        },
        "stats": device.stats,
        "ooms": [_oom(shortage) for shortage in shortages],
        "stopped_at": device.stopped_at,
        "fidelity": None if device.fidelity is None else _fidelity(device.fidelity),
        "notes": list(device.notes),
    }
    if cure is not None:
        document["cure"] = _cure(cure)
    return document


def _oom(shortage: Shortage) -> dict[str, Any]:
    return {
        **asdict(shortage.oom),
        "cause": shortage.cause,
        "idle_bytes": shortage.idle_bytes,
        "total_bytes": shortage.figures.total_bytes,
        "free_bytes": shortage.figures.free_bytes,
    }


def _fidelity(fidelity: Fidelity) -> dict[str, Any]:
    return {**asdict(fidelity), "is_exact": fidelity.is_exact}


def _cure(cure: Cure) -> dict[str, Any]:
    return {
        "device_memory": cure.device_memory,
        "best": None if cure.best is None else _trial(cure.best),
        "baseline": _trial(cure.baseline),
        "trials": [_trial(trial) for trial in cure.trials],
        "entries_left": cure.entries_left,
    }


def _trial(trial: Trial) -> dict[str, Any]:
    return asdict(trial)
