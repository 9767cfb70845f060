"""A bit-exact model of PyTorch's CUDA caching allocator.

    from allocsim import CachingAllocator, explain, load, replay, tune

`CachingAllocator` answers requests as PyTorch's allocator does, address by address, and
`CachingHostAllocator` those for pinned host memory, block by block.  `load` reads a
recorded memory history, and each command has a function of its name: `replay`, `explain`, `top`,
`compare`, `tune`, `risk`, `lint`, `gate`, `ranks`, `stats`, `step`, `fit`, `convert`.

The types of answers are in `allocsim.results`, charts in `allocsim.plot`, errors in
`allocsim.errors`, sizes in `allocsim.units`.  `allocsim.capture` records inside a program, and
`allocsim.workload` makes recordings of synthetic programs.

Names are imported on first use: `allocsim --help` does not import NumPy.
"""

import warnings
from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.2.0.dev0"

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
    "CachingAllocator",
    "CachingHostAllocator",
    "colocate",
    "compare",
    "compare_settings",
    "convert",
    "explain",
    "explain_recording",
    "explain_state",
    "fit",
    "gate",
    "lint",
    "lint_conf",
    "load",
    "measured",
    "model_of",
    "program_of",
    "ranks",
    "recording_at",
    "replay",
    "replay_edited",
    "risk",
    "scaling_of",
    "simulate",
    "stats",
    "step",
    "top",
    "tune",
    "Budget",
    "Hints",
    "Task",
    "AllocsimError",
    "OutOfMemoryError",
]

_HOMES = {
    "CachingAllocator": "core",
    "CachingHostAllocator": "host",
    "Hints": "simulation",
    "Task": "fitting",
    "Budget": "analysis.gate",
    "colocate": "analysis.colocate",
    "compare": "analysis.compare",
    "compare_settings": "analysis.compare",
    "convert": "report.formats",
    "explain": "analysis.explain",
    "explain_recording": "analysis.explain",
    "explain_state": "analysis.explain",
    "fit": "fitting",
    "model_of": "fitting",
    "program_of": "fitting",
    "gate": "analysis.gate",
    "measured": "analysis.gate",
    "lint": "analysis.lint",
    "lint_conf": "analysis.lint",
    "load": "recording",
    "ranks": "analysis.ranks",
    "recording_at": "fitting.scale",
    "replay": "replaying",
    "replay_edited": "editing",
    "risk": "analysis.risk",
    "scaling_of": "fitting.scale",
    "simulate": "export",
    "stats": "analysis.stats",
    "step": "analysis.step",
    "top": "analysis.top",
    "tune": "analysis.tune",
    "AllocsimError": "errors",
    "OutOfMemoryError": "errors",
}
"""Package of each name."""
_PACKAGES = ("capture", "errors", "plot", "results", "units", "workload")
"""Public modules, imported on first use."""
_ORIGINAL = {"risk": "risk_of"}
"""Name in its package, if that is another one."""
_MOVED = {
    "results": (
        "Action",
        "Comparison",
        "Decision",
        "DeviceExplanation",
        "DeviceRun",
        "Fit",
        "Gate",
        "Lint",
        "Measured",
        "Ranks",
        "Recording",
        "Request",
        "Risk",
        "Run",
        "Scaled",
        "Scaling",
        "Simulated",
        "StateExplanation",
        "Stats",
        "Top",
        "Tuning",
        "Verdict",
        "explanation_text",
        "segments_text",
        "step_text",
    ),
    "plot": ("Picture", "Still", "figures", "owners_of", "picture_of", "still_of"),
    "errors": (
        "ConfigError",
        "DriverRefusalError",
        "InvariantError",
        "RecordingError",
        "UndefinedBehaviorError",
        "UpstreamAssertionError",
        "UpstreamError",
    ),
    "units": ("GIB", "KIB", "MIB", "format_size", "parse_size"),
}
"""Names of 0.1 by their module since 0.2; the aliases go in 0.3."""


def __getattr__(name: str) -> object:
    if name in _PACKAGES:
        return import_module(f"allocsim.{name}")
    if name in _HOMES:
        home = import_module(f"allocsim.{_HOMES[name]}")
        value: object = getattr(home, _ORIGINAL.get(name, name))
        globals()[name] = value
        return value
    for module, names in _MOVED.items():
        if name in names:
            warnings.warn(
                f"allocsim.{name} moved to allocsim.{module}; the old name goes in 0.3",
                DeprecationWarning,
                stacklevel=2,
            )
            return getattr(import_module(f"allocsim.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PACKAGES})
