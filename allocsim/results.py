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
    from allocsim.report import explain, step
    from allocsim.simulation import DeviceRun, Run

    explanation_text, segments_text, step_text = explain.text, step.segments_text, step.text

__all__ = [
    "Action", "Comparison", "Decision", "DeviceExplanation", "DeviceRun", "Edit", "Fit", "Gate",
    "Lint", "Measured", "Ranks", "Recording", "Request", "Risk", "Run", "Scaled", "Scaling",
    "Simulated", "StateExplanation", "Stats", "Top", "Tuning", "Verdict", "explanation_text",
    "segments_text", "step_text",
]  # fmt: skip

_HOMES = {
    "analysis.compare": "Comparison",
    "analysis.explain": "DeviceExplanation StateExplanation Verdict",
    "analysis.gate": "Gate Measured",
    "analysis.lint": "Lint",
    "analysis.ranks": "Ranks",
    "analysis.risk": "Risk",
    "analysis.stats": "Stats",
    "analysis.step": "Decision Request",
    "analysis.top": "Top",
    "analysis.tune": "Tuning",
    "editing": "Edit",
    "export": "Simulated",
    "fitting": "Fit",
    "fitting.scale": "Scaled Scaling",
    "recording": "Action Recording",
    "report.explain": "explanation_text=text",
    "report.step": "segments_text step_text=text",
    "simulation": "DeviceRun Run",
}

__getattr__ = lazily(globals(), _HOMES)
