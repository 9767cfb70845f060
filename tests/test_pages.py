"""Pages are kept for the columns to come, and none is taken for it."""

from __future__ import annotations

from resource import RUSAGE_SELF, getrusage

from allocsim.pages import keep_pages


def test_to_keep_pages_takes_none() -> None:
    """What counts for the C library is an array's length, not that anybody wrote to it."""
    keep_pages.cache_clear()
    before = getrusage(RUSAGE_SELF).ru_maxrss
    keep_pages()
    assert getrusage(RUSAGE_SELF).ru_maxrss - before < 4096  # KiB, of 32 MiB
