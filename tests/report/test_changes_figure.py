"""Chart of a comparison: bars add up, both runs share one scale, and names are escaped."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.patches import Rectangle

from allocsim import compare, load
from allocsim.analysis.compare import Comparison
from allocsim.report.figures import DARK, changes_figure, save_figure
from allocsim.units import GIB, MIB

SIZED = Path(__file__).parents[2] / "traces" / "sized"


@pytest.fixture(scope="module")
def found() -> Comparison:
    return compare(load(SIZED / "layers2.npz.gz"), load(SIZED / "layers3.npz.gz"))


def test_bars_of_the_changes_figure_add_up_to_the_difference(found: Comparison) -> None:
    figure = changes_figure(found)
    _, bars = figure.axes
    unit = GIB if "GiB" in bars.get_xlabel() else MIB
    widths = [bar.get_width() for bar in bars.patches if isinstance(bar, Rectangle)]
    drawn = sum(round(width * unit) for width in widths)
    assert drawn == pytest.approx(found.allocated_change, abs=len(bars.patches))
    assert len(bars.patches) == 2 * len(bars.get_yticklabels()) <= 26, "asked for, and rounding"


def test_curves_of_the_changes_figure_reach_both_peaks(found: Comparison) -> None:
    curves, _ = changes_figure(found, DARK).axes
    unit = GIB if "GiB" in curves.get_ylabel() else MIB
    tops = {
        str(line.get_label()): float(np.max(np.asarray(line.get_ydata()))) * unit
        for line in curves.lines
    }
    assert tops["reserved, A"] == pytest.approx(found.a.reserved.reserved)
    assert tops["reserved, B"] == pytest.approx(found.b.reserved.reserved)


def test_changes_figure_escapes_formulas_and_draws_no_curve_of_a_state(
    found: Comparison, tmp_path: Path
) -> None:
    changes = tuple(replace(each, owner="$\\frac{") for each in found.changes)
    sides = [replace(side, outline=None) for side in (found.a, found.b)]
    figure = changes_figure(replace(found, changes=changes, a=sides[0], b=sides[1]))
    assert not figure.axes[0].lines
    save_figure(figure, str(tmp_path / "changes.svg"))
    assert "\\frac" in (tmp_path / "changes.svg").read_text()
