"""Result of running random allocator calls in the simulation and in real PyTorch, as text and JSON.

If the results differ, the text contains a test that fails until the simulation is fixed.
"""

from __future__ import annotations

from typing import Any

from allocsim._repr import printable
from allocsim.report.layout import plural, row, table
from allocsim.verify import KINDS, Report

_TITLES = {
    "operation": "operations",
    "feature": "uses of each feature",
    "option": "operations under each option",
    "release": "operations by release",
    "device": "operations by device",
    "script": "scripts",
}


def text(report: Report, route: str) -> str:
    """Return the text of `allocsim crosscheck`; `route` describes how real PyTorch was run."""
    lines = row("Real PyTorch", route)
    for release, (first, last) in report.seeds.items():
        lines += row("Seeds", f"{first} to {last}, torch {release}")
    for kind in KINDS:
        if rows := report.tally.rows(kind):
            lines += ["", _TITLES[kind], *table(((n, f"{c:,}") for n, c in rows), (50, 16))]
    lines.append("")
    if report.divergence is not None:
        lines += [*map(printable, report.divergence.as_test().splitlines()), ""]
    return "\n".join([*lines, _verdict(report)]) + "\n"


def _verdict(report: Report) -> str:
    ran = f"{plural(report.tally.ops, 'operation')} of torch {', '.join(report.seeds)}"
    if report.divergence is None:
        return f"equal: {ran}, no divergence"
    difference = report.divergence.difference
    where = difference.field if difference.at is None else f"{difference.field}[{difference.at}]"
    return (
        f"DIVERGENCE in torch {report.divergence.release} after {ran}: {where} differs; "
        "the test above fails until the model is fixed"
    )


def document(report: Report, route: str) -> dict[str, Any]:
    divergence = None
    if (found := report.divergence) is not None:
        divergence = {
            "torch_version": found.release,
            "field": found.difference.field,
            "at": found.difference.at,
            "difference": str(found.difference),
            "test": found.as_test(),
        }
    return {
        "real": route,
        "operations": report.tally.ops,
        "seeds": {release: list(seeds) for release, seeds in report.seeds.items()},
        "counts": report.tally.as_dict(),
        "divergence": divergence,
        "verdict": _verdict(report),
    }
