"""A bit-exact model of PyTorch's CUDA caching allocator.

    from allocsim import CachingAllocator, explain, load, replay, risk, top, tune

- `CachingAllocator` serves requests as PyTorch's allocator does, address by address.
- `load` reads a recorded memory history; `replay` replays it under its own or other settings.
- `explain` gives the cause of an out-of-memory error, from its text or a recording.
- `top` lists the owners of the memory at a moment; `risk` reports how close a run comes to failing.
- `fit` reports if a model fits a card, by running it on a phantom GPU.
- `tune` finds the best setting for recordings.
- `lint` reports problems of a recording; `stats` summarizes it.
- `simulate` returns a replay as a recording; `convert` writes a recording in another format.
- `step` processes one request and explains every decision.
- `picture_of` prepares a recording for drawing; `figures` draws it.
- `workload` creates recordings of synthetic programs.
- `capture` records inside a running program.

Names are imported when they are first used: `allocsim --help` needs no NumPy.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.2.0.dev0"

if TYPE_CHECKING:
    from allocsim import capture, workload
    from allocsim.core import CachingAllocator
    from allocsim.engine import DeviceRun, Hints, Run, Simulated, replay, simulate
    from allocsim.errors import (
        AllocsimError,
        ConfigError,
        DriverRefusalError,
        InvariantError,
        OutOfMemoryError,
        RecordingError,
        UndefinedBehaviorError,
        UpstreamAssertionError,
        UpstreamError,
    )
    from allocsim.questions.compare import Comparison, compare, compare_settings
    from allocsim.questions.explain import (
        DeviceExplanation,
        StateExplanation,
        Verdict,
        explain,
        explain_recording,
        explain_state,
    )
    from allocsim.questions.fit import Fit, Task, fit, model_of, program_of
    from allocsim.questions.gate import Budget, Gate, Measured, gate, measured
    from allocsim.questions.lint import Lint, lint, lint_conf
    from allocsim.questions.picture import Picture, Still, owners_of, picture_of, still_of
    from allocsim.questions.ranks import Ranks, ranks
    from allocsim.questions.risk import Risk
    from allocsim.questions.risk import risk_of as risk
    from allocsim.questions.scale import Scaled, Scaling, recording_at, scaling_of
    from allocsim.questions.stats import Stats, stats
    from allocsim.questions.step import Decision, Request, step
    from allocsim.questions.top import Top, top
    from allocsim.questions.tune import Tuning, tune
    from allocsim.report import explanation_text, figures, segments_text, step_text
    from allocsim.report.formats import convert
    from allocsim.trace import Action, Recording, load
    from allocsim.units import GIB, KIB, MIB, format_size, parse_size

__all__ = [
    "CachingAllocator",
    "Hints",
    "OutOfMemoryError",
    "compare",
    "convert",
    "explain",
    "gate",
    "measured",
    "fit",
    "lint",
    "load",
    "ranks",
    "replay",
    "risk",
    "scaling_of",
    "simulate",
    "stats",
    "step",
    "top",
    "tune",
    "compare_settings",
    "explain_recording",
    "explain_state",
    "lint_conf",
    "model_of",
    "owners_of",
    "picture_of",
    "program_of",
    "recording_at",
    "still_of",
    "capture",
    "figures",
    "workload",
    "Action",
    "Comparison",
    "Decision",
    "DeviceExplanation",
    "DeviceRun",
    "Fit",
    "Budget",
    "Gate",
    "Lint",
    "Measured",
    "Picture",
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
    "Still",
    "Task",
    "Top",
    "Tuning",
    "Verdict",
    "explanation_text",
    "segments_text",
    "step_text",
    "GIB",
    "KIB",
    "MIB",
    "format_size",
    "parse_size",
    "AllocsimError",
    "ConfigError",
    "DriverRefusalError",
    "InvariantError",
    "RecordingError",
    "UndefinedBehaviorError",
    "UpstreamAssertionError",
    "UpstreamError",
]

_HOMES = {
    "core": ("CachingAllocator",),
    "engine": ("DeviceRun", "Hints", "Run", "Simulated", "replay", "simulate"),
    "questions.compare": ("Comparison", "compare", "compare_settings"),
    "questions.explain": (
        *("DeviceExplanation", "StateExplanation", "Verdict"),
        *("explain", "explain_recording", "explain_state"),
    ),
    "questions.fit": ("Fit", "Task", "fit", "model_of", "program_of"),
    "questions.gate": ("Budget", "Gate", "Measured", "gate", "measured"),
    "questions.lint": ("Lint", "lint", "lint_conf"),
    "questions.picture": ("Picture", "Still", "owners_of", "picture_of", "still_of"),
    "questions.ranks": ("Ranks", "ranks"),
    "questions.risk": ("Risk", "risk"),
    "questions.scale": ("Scaled", "Scaling", "recording_at", "scaling_of"),
    "questions.stats": ("Stats", "stats"),
    "questions.step": ("Decision", "Request", "step"),
    "questions.top": ("Top", "top"),
    "questions.tune": ("Tuning", "tune"),
    "report.formats": ("convert",),
    "report": ("explanation_text", "segments_text", "step_text"),
    "trace": ("Action", "Recording", "load"),
    "units": ("GIB", "KIB", "MIB", "format_size", "parse_size"),
}
"""Public names of each package; the rest are errors."""
_PACKAGES = {"capture": "capture", "figures": "report.figures", "workload": "workload"}
"""Public packages."""
_THERE = {"risk": "risk_of"}
"""Names that differ from those in their packages."""


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _PACKAGES:
        value: object = import_module(f"allocsim.{_PACKAGES[name]}")
    else:
        home = next((package for package, names in _HOMES.items() if name in names), "errors")
        value = getattr(import_module(f"allocsim.{home}"), _THERE.get(name, name))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
