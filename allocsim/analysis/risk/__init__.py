"""Headroom of a run before an out-of-memory error, and the smallest sufficient device."""

from allocsim.analysis.risk.risk import HeadroomPoint, Need, Risk, Span, risk_of

__all__ = ["HeadroomPoint", "Need", "Risk", "Span", "risk_of"]
