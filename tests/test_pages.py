"""Freed pages are kept for later columns, without using memory."""

from __future__ import annotations

from resource import RUSAGE_SELF, getrusage

from allocsim.pages import keep_pages


def test_to_keep_pages_takes_none() -> None:
    """The C library counts the length of an array, not its use."""
    keep_pages.cache_clear()
    before = getrusage(RUSAGE_SELF).ru_maxrss
    keep_pages()
    assert getrusage(RUSAGE_SELF).ru_maxrss - before < 4096  # KiB, of 32 MiB
