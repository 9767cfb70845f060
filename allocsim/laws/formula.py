"""Bytes of a request as a monomial.

Rule: exact whole numbers; what comes to a broken number of bytes is rounded up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from allocsim.laws.variables import VARIABLES

__all__ = ["Formula"]


@dataclass(frozen=True, slots=True)
class Formula:
    """numerator / denominator times each of the variables, by their numbers in `VARIABLES`."""

    numerator: int
    denominator: int
    variables: tuple[int, ...]

    def at(self, values: Mapping[str, int]) -> int:
        """The bytes where the variables have those values."""
        product = self.numerator
        for number in self.variables:
            product *= values[VARIABLES[number]]
        return -(-product // self.denominator)

    @property
    def text(self) -> str:
        """As one writes it: 2 * batch * length * hidden."""
        share = f" / {self.denominator}" if self.denominator != 1 else ""
        names: Sequence[str] = [VARIABLES[number] for number in self.variables]
        return " * ".join((str(self.numerator), *names)) + share
