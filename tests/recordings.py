"""Recordings in the repository: of the phantom GPU, and of real cards."""

from __future__ import annotations

from pathlib import Path

TRACES = Path(__file__).parents[1] / "traces"
CARDS = (TRACES / "h200", TRACES / "h100" / "engines")
"""Folders of recordings from real cards."""


def phantom_recordings() -> list[Path]:
    """Return every recording under `traces/` that was made without a card, in order of path.

    Recordings of real cards have separate tests: they have ten times as many entries, and
    tie-breaks that depend on the addresses of a real driver.
    """
    found = sorted(TRACES.rglob("*.gz"))
    return [path for path in found if not any(path.is_relative_to(card) for card in CARDS)]
