"""Numbers from runs: what a replay's figures prove, and nothing beyond."""

from allocsim.analysis.shortage import Shortage, shortages_of

__all__ = ["Shortage", "shortages_of"]
