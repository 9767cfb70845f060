"""Formula of a request's bytes: a number times variables such as batch and hidden size.

Rule: the arithmetic is exact; a fraction of a byte is rounded up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from allocsim.fitting.laws.variables import VARIABLES

__all__ = ["Formula"]


@dataclass(frozen=True, slots=True)
class Formula:
    """Product of numerator / denominator and variables, given by their indices in `VARIABLES`."""

    numerator: int
    denominator: int
    variables: tuple[int, ...]

    def at(self, values: Mapping[str, int]) -> int:
        """Return the bytes at the given values of the variables."""
        product = self.numerator
        for number in self.variables:
            product *= values[VARIABLES[number]]
        return -(-product // self.denominator)

    @property
    def text(self) -> str:
        """Formula as text, such as "2 * batch * length * hidden"."""
        share = f" / {self.denominator}" if self.denominator != 1 else ""
        names: Sequence[str] = [VARIABLES[number] for number in self.variables]
        return " * ".join((str(self.numerator), *names)) + share
