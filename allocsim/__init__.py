"""A bit-exact model of PyTorch's CUDA caching allocator.

    from allocsim import CachingAllocator, explain, load, replay, risk, top, tune

`CachingAllocator` answers requests as PyTorch's own allocator would, address by address;
`explain` says why an out-of-memory error happened, from its text or a recording;
`load` reads a recorded memory history and `replay` runs it again, under its own settings or others;
`top` says who held its memory at a moment, `risk` how near it came to running out of memory;
`fit` says whether a model fits a card, by running it on one that is not there;
`tune` says which setting a recording would have done best with;
`lint` says what is wrong with a recording, `stats` what is in it;
`simulate` records a replay as PyTorch would have recorded that run, `convert` writes a recording in
the format of another tool;
`step` takes one request at a time, every decision named;
`picture_of` makes a recording ready to be drawn and `figures` draws it;
`workload` makes recordings of imagined programs;
`capture` records inside one's own.

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
"""The names of each package; the rest are errors."""
_PACKAGES = {"capture": "capture", "figures": "report.figures", "workload": "workload"}
"""Packages that are public as they are."""
_THERE = {"risk": "risk_of"}
"""What a name is called in its package, where that is something else."""


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
