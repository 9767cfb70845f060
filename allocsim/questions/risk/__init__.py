"""How near did a run come to running out of memory?"""

from allocsim.questions.risk.headroom import HeadroomPoint, Span
from allocsim.questions.risk.risk import Need, Risk, risk_of

__all__ = ["HeadroomPoint", "Need", "Risk", "Span", "risk_of"]
