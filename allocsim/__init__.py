"""A bit-exact model of PyTorch's CUDA caching allocator.

    from allocsim import CachingAllocator, explain, load, replay, tune

`CachingAllocator` gives each request the address that PyTorch's allocator would give it, and
`CachingHostAllocator` models the allocator of pinned host memory.  `load` reads a recorded memory
history, and each command has a function of its name: `replay`, `explain`, `top`, `compare`, `tune`,
`risk`, `lint`, `gate`, `ranks`, `stats`, `step`, `fit`, `convert`.

The types of results are in `allocsim.results`, charts in `allocsim.plot`, errors in
`allocsim.errors`, sizes in `allocsim.units`.  `allocsim.capture` records inside a program, and
`allocsim.workload` makes recordings of synthetic programs.

Names are imported on first use: `allocsim --help` does not import NumPy.
"""

import warnings
from importlib import import_module
from typing import TYPE_CHECKING

from allocsim._lazy import lazily

__version__ = "0.2.0"

if TYPE_CHECKING:
    from allocsim.analysis.colocate import colocate
    from allocsim.analysis.compare import compare, compare_settings
    from allocsim.analysis.explain import explain, explain_recording, explain_state
    from allocsim.analysis.gate import Budget, gate, measured
    from allocsim.analysis.lint import lint, lint_conf
    from allocsim.analysis.ranks import ranks
    from allocsim.analysis.risk import risk_of as risk
    from allocsim.analysis.stats import stats
    from allocsim.analysis.step import step
    from allocsim.analysis.top import top
    from allocsim.analysis.tune import tune
    from allocsim.core import CachingAllocator
    from allocsim.editing import replay_edited
    from allocsim.errors import AllocsimError, OutOfMemoryError
    from allocsim.export import simulate
    from allocsim.fitting import Task, fit, model_of, program_of
    from allocsim.fitting.scale import recording_at, scaling_of
    from allocsim.host import CachingHostAllocator
    from allocsim.recording import load
    from allocsim.replaying import replay
    from allocsim.report.formats import convert
    from allocsim.simulation import Hints

__all__ = [
    "CachingAllocator", "CachingHostAllocator", "colocate", "compare", "compare_settings",
    "convert", "explain", "explain_recording", "explain_state", "fit", "gate", "lint", "lint_conf",
    "load", "measured", "model_of", "program_of", "ranks", "recording_at", "replay",
    "replay_edited", "risk", "scaling_of", "simulate", "stats", "step", "top", "tune", "Budget",
    "Hints", "Task", "AllocsimError", "OutOfMemoryError",
]  # fmt: skip

_HOMES = {
    "analysis.colocate": "colocate",
    "analysis.compare": "compare compare_settings",
    "analysis.explain": "explain explain_recording explain_state",
    "analysis.gate": "Budget gate measured",
    "analysis.lint": "lint lint_conf",
    "analysis.ranks": "ranks",
    "analysis.risk": "risk=risk_of",
    "analysis.stats": "stats",
    "analysis.step": "step",
    "analysis.top": "top",
    "analysis.tune": "tune",
    "core": "CachingAllocator",
    "editing": "replay_edited",
    "errors": "AllocsimError OutOfMemoryError",
    "export": "simulate",
    "fitting": "Task fit model_of program_of",
    "fitting.scale": "recording_at scaling_of",
    "host": "CachingHostAllocator",
    "recording": "load",
    "replaying": "replay",
    "report.formats": "convert",
    "simulation": "Hints",
}
_PACKAGES = ("capture", "errors", "plot", "results", "units", "workload")
"""Public modules, imported on first use."""
_MOVED = ("results", "plot", "errors", "units")
"""Modules whose names version 0.1 had in this package.

Until version 0.3, this package forwards these names, with a warning.
"""

_find = lazily(globals(), _HOMES)


def __getattr__(name: str) -> object:
    if name in _PACKAGES:
        return import_module(f"allocsim.{name}")
    try:
        return _find(name)
    except AttributeError:
        for moved in map(import_module, (f"allocsim.{module}" for module in _MOVED)):
            if name in moved.__all__:
                warnings.warn(
                    f"allocsim.{name} moved to {moved.__name__}; the old name goes in 0.3",
                    DeprecationWarning,
                    stacklevel=2,
                )
                return getattr(moved, name)
        raise


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PACKAGES})
