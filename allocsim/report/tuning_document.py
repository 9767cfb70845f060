"""`allocsim tune --json` as plain dictionaries.

Rule: keys are added, never renamed; sizes are integers in bytes; what is unknown is null.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from allocsim.report.tuning_paste import environment, paste_lines
from allocsim.tuning.row import Row
from allocsim.tuning.tuning import Tuning

__all__ = ["tuning_document"]


def tuning_document(tuning: Tuning) -> dict[str, Any]:
    """The whole search."""
    best = tuning.best
    return {
        "files": list(tuning.files),
        "torch_version": tuning.torch_version,
        "device_memory": tuning.device_memory,
        "find_device": tuning.by_device,
        "notes": list(tuning.notes),
        "baseline": _row(tuning.baseline),
        "rows": [_row(row) for row in tuning.rows],
        "best": None if best is None else _best(tuning, best),
        "helps": tuning.helps,
        "reason": tuning.reason,
        "front": [row.conf for row in tuning.front],
        "duplicates": [
            {"conf": mine.conf, "memory_fraction": mine.call_fraction, "same_as": like.conf}
            for mine, like in tuning.duplicates
        ],
        "bounds": asdict(tuning.bounds),
        "costs": asdict(tuning.costs),
        "seconds": round(tuning.seconds, 3),
        "entries": tuning.entries,
        "entries_replayed": tuning.entries_replayed,
        "entries_skipped": tuning.entries_skipped,
        "rows_from_results": tuning.known,
    }


def _best(tuning: Tuning, best: Row) -> dict[str, Any]:
    saved = tuning.saved_bytes
    before = tuning.baseline.peak_reserved_bytes
    return {
        "conf": best.conf,
        "memory_fraction": best.memory_fraction,
        "env": environment(best.setting),
        "paste": paste_lines(best.setting),
        "saved_bytes": saved,
        "saved_percent": round(100 * saved / before, 2) if before else 0.0,
        "above_ideal_bytes": tuning.bounds.above_ideal(best.peak_reserved_bytes),
    }


def _row(row: Row) -> dict[str, Any]:
    point = row.device_point
    return {
        "conf": row.conf,
        "memory_fraction": row.memory_fraction,
        "peak_reserved_bytes": row.peak_reserved_bytes,
        "peak_allocated_bytes": row.peak_allocated_bytes,
        "min_device_memory_bytes": row.min_device_memory_bytes,
        "device_without_retries_bytes": row.unrefused_device,
        "num_alloc_retries": row.num_alloc_retries,
        "num_device_alloc": row.num_device_alloc,
        "num_device_free": row.num_device_free,
        "num_ooms": row.num_ooms,
        "retries_on_min_device": None if point is None else point.retries,
        "survives": row.survives,
        "is_baseline": row.is_baseline,
        "dropped_at": row.dropped_at,
        "same_as": None if row.same_as is None else row.same_as.conf,
        "error": row.error,
        "driver_us": round(row.cost.total, 1),
        "churn_us": round(row.cost.churn, 1),
        "is_thrashing": row.cost.is_thrashing,
        "parts": [part.plain() for part in row.parts],
    }
