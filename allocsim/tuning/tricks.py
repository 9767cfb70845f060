"""What spares a sweep replays; each can be switched off, and none changes what is best.

Rule: with every trick off, each setting of the grid is replayed to its end on its own.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["EXHAUSTIVE", "Tricks"]


@dataclass(frozen=True, slots=True)
class Tricks:
    """equivalent: settings of equal effect are replayed once (see `effect_of`).

    drop: a replay ends once a finished setting dominates it in memory, calls and retries, or
    once it fails on the smallest device found so far, where one is looked for (so that trade-offs
    on larger devices are not seen).  from_peak: the device on which nothing is refused is the peak,
    where that is proved, and is looked for near peaks elsewhere.  repeats: steps of a program that
    change nothing any more are passed over (see `allocsim.engine.repeats`).  fast_path: plain steps
    are taken in rows (see `allocsim.core.fast_path`), and no more is counted than is told.
    """

    equivalent: bool = True
    drop: bool = True
    from_peak: bool = True
    repeats: bool = True
    fast_path: bool = True


EXHAUSTIVE = Tricks(equivalent=False, drop=False, from_peak=False, repeats=False, fast_path=False)
"""No trick at all."""
