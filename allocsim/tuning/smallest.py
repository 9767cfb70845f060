"""The smallest device on which one setting does, by bisection.

Rule: the size returned did in a replay and one page of 2 MiB less did not, or could not hold what
lives at once.  In between, more memory is taken never to hurt; the caching allocator does not
promise that, so a far smaller device that happens to do may be missed.

Where the driver refused nothing, the peak itself is a device that does: on one of that size
every request is answered as before, and on a smaller one the request of the peak is refused.
Expandable segments are the exception, since their address space is 9/8 of the device and a hole
beside it is ranked by its room to grow (semantics 4.1, 4.4): there the peak is only where the
search begins.
"""

from __future__ import annotations

from collections.abc import Callable

from allocsim.tuning.outcome import Outcome

__all__ = ["Found", "Liked", "Trial", "find_smallest"]

Trial = Callable[[int], Outcome | None]
"""A replay on so many pages; None where no device so small holds the recording's start."""

Liked = Callable[[Outcome], int | None]
"""The pages of a run's peak, where it was refused nothing; a device of that size may well do, and
one page less will then not.  None where that tells nothing."""

Found = tuple[int, Outcome, int | None]
"""(pages, the outcome there, the entry that fails one page below)."""

_MOST_PAGES = 1 << 29
"""A device of 2**50 bytes: what does not go through there goes through nowhere."""


def find_smallest(
    trial: Trial,
    does: Callable[[Outcome], bool],
    *,
    least: int,
    first: int,
    known: Outcome | None = None,
    liked: Liked | None = None,
) -> Found | None:
    """The smallest device for which `does` holds; None: there is none.

    least: pages, one less cannot hold what lives at once.  first: pages to begin with; known:
    the outcome there, if it does.  liked: tells where to look next; None: always half-way.
    """
    low, high = least - 1, max(first, least)
    best, step = known, high if liked is None else max(high // 8, 1)
    while best is None:
        best = _tried(trial, does, high)
        if best is None:
            low, high = high, high + step
            step = high
            if low > _MOST_PAGES:
                return None
    fails_at = None
    guess = high - 1  # a peak is mostly the answer itself
    if liked is not None and (pages := liked(best)) is not None:
        guess = min(pages, guess)
    while high - low > 1:
        middle = guess if low < guess < high else (low + high) // 2
        tried = trial(middle)
        if tried is not None and does(tried):
            high, best = middle, tried
            pages = None if liked is None else liked(tried)
            guess = 0 if pages is None else min(pages, middle - 1)
        else:
            low, fails_at = middle, None if tried is None else tried.oom_entry
    return high, best, fails_at


def _tried(trial: Trial, does: Callable[[Outcome], bool], pages: int) -> Outcome | None:
    tried = trial(pages)
    return tried if tried is not None and does(tried) else None
