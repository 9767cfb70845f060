"""Types of the values that allocsim's functions return, and functions that format them."""

from typing import TYPE_CHECKING

from allocsim._lazy import lazily

if TYPE_CHECKING:
    from allocsim.analysis.compare import Comparison
    from allocsim.analysis.explain import DeviceExplanation, StateExplanation, Verdict
    from allocsim.analysis.gate import Gate, Measured
    from allocsim.analysis.lint import Lint
    from allocsim.analysis.ranks import Ranks
    from allocsim.analysis.risk import Risk
    from allocsim.analysis.stats import Stats
    from allocsim.analysis.step import Decision, Request
    from allocsim.analysis.top import Top
    from allocsim.analysis.tune import Tuning
    from allocsim.editing import Edit
    from allocsim.export import Simulated
    from allocsim.fitting import Fit
    from allocsim.fitting.scale import Scaled, Scaling
    from allocsim.recording import Action, Recording
    from allocsim.report import explanation_text, segments_text, step_text
    from allocsim.simulation import DeviceRun, Run

__all__ = [
    "Action",
    "Comparison",
    "Decision",
    "DeviceExplanation",
    "DeviceRun",
    "Edit",
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
]

_HOMES = {
    "Action": "recording",
    "Recording": "recording",
    "Comparison": "analysis.compare",
    "Decision": "analysis.step",
    "Request": "analysis.step",
    "DeviceExplanation": "analysis.explain",
    "StateExplanation": "analysis.explain",
    "Verdict": "analysis.explain",
    "DeviceRun": "simulation",
    "Run": "simulation",
    "Edit": "editing",
    "Fit": "fitting",
    "Gate": "analysis.gate",
    "Measured": "analysis.gate",
    "Lint": "analysis.lint",
    "Ranks": "analysis.ranks",
    "Risk": "analysis.risk",
    "Scaled": "fitting.scale",
    "Scaling": "fitting.scale",
    "Simulated": "export",
    "Stats": "analysis.stats",
    "Top": "analysis.top",
    "Tuning": "analysis.tune",
    "explanation_text": "report",
    "segments_text": "report",
    "step_text": "report",
}

__getattr__ = lazily(globals(), _HOMES)
