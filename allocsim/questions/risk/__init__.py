"""How near did a run come to running out of memory?"""

from allocsim.questions.risk.risk import HeadroomPoint, Need, Risk, Span, risk_of

__all__ = ["HeadroomPoint", "Need", "Risk", "Span", "risk_of"]
