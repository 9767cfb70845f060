"""A curve as a small inline SVG, drawn by the highest value of each stretch.

Rule: all lines of one table have the same scales, from 0 to `top` and over `length` stretches.
"""

from __future__ import annotations

from allocsim.measures import Extremes

__all__ = ["sparkline"]

_WIDTH, _HEIGHT = 220, 40


def sparkline(extremes: Extremes, top: int, length: int) -> str:
    """The area under the curve; screen readers have the figures beside it."""
    x, y = _WIDTH / max(length, 1), (_HEIGHT - 2) / max(top, 1)

    def points(values: list[int]) -> list[str]:
        at = ((i, _HEIGHT - 1 - value * y) for i, value in enumerate(values))
        return [f"{at_x * x:.1f},{at_y:.1f} {(at_x + 1) * x:.1f},{at_y:.1f}" for at_x, at_y in at]

    high = " ".join(points(extremes.high.tolist()))
    area = f"0,{_HEIGHT} {high} {len(extremes.high) * x:.1f},{_HEIGHT}"
    return (
        f'<svg class="spark" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" '
        f'aria-hidden="true"><polygon points="{area}"/><polyline points="{high}"/></svg>'
    )
