"""Range of a program's memory under other releases than those whose requests a law describes.

Rule: laws are of one release of PyTorch and of transformers. The range holds all but one of the
programs of PyTorch 2.11 and transformers 5.17 that were compared with their law (table in
docs/reference/laws.md). Its upper end decides the verdict if the user's release is known to differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor

from allocsim.core import find_release
from allocsim.fitting.laws import installed_transformers, numbers_of
from allocsim.fitting.task import Task


@dataclass(frozen=True, slots=True)
class Drift:
    """Lowest and highest peak of reserved memory under other releases, in per cent of the law's.

    is_known: True if the user's release is known to differ from that of the law; False if it is
        unknown.
    """

    low: float
    high: float
    is_known: bool = False

    def of(self, peak: int) -> tuple[int, int]:
        """Return the range of a peak of `peak` bytes by law, in bytes."""
        return floor(peak * (1 + self.low / 100)), ceil(peak * (1 + self.high / 100))

    @property
    def text(self) -> str:
        return f"{self.low:+g} to {self.high:+g} %"


_TRAINING, _SERVING, _EAGER_SERVING = (-2, 6), (-6, 4), (-1, 30)


def drift_of(
    task: Task, torch_version: str, transformers: str, *, torch: str | None, meant: str | None
) -> Drift | None:
    """Return how far the peak of a task may be from its law; None if both releases are the law's.

    torch_version, transformers: releases that the law was recorded with.
    torch: the user's release of PyTorch; None for that of the law.
    meant: the user's release of transformers; None for the installed one, or that of the law if
        none is installed.

    Raises ConfigError for an invalid release.
    """
    meant = installed_transformers() if meant is None else meant
    differs = meant is not None and numbers_of(meant) != numbers_of(transformers)
    if torch is not None:
        differs |= not torch_version.startswith(f"{find_release(torch).version}.")
    if meant is not None and not differs:
        return None
    ends = _TRAINING if task.is_training else _SERVING
    if not task.is_training and task.attention == "eager":
        ends = _EAGER_SERVING
    return Drift(*ends, is_known=differs)
