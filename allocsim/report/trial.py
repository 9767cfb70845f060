"""A trial as a plain dictionary, as several commands' JSON shows it.

Rule: keys are added, never renamed; sizes are integers in bytes; what is unknown is null.
"""

from __future__ import annotations

from typing import Any

from allocsim.engine import Trial

__all__ = ["trial_document"]


def trial_document(trial: Trial) -> dict[str, Any]:
    """What a setting needed."""
    return {
        "conf": trial.conf,
        "oom_entry": trial.oom_entry,
        "peak_reserved_bytes": trial.peak_reserved_bytes,
        "peak_allocated_bytes": trial.peak_allocated_bytes,
        "num_alloc_retries": trial.num_alloc_retries,
        "num_device_alloc": trial.num_device_alloc,
        "num_device_free": trial.num_device_free,
    }
