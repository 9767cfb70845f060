"""The words that PyTorch and its relatives put around a figure, as data: a new one is a new row.

Rule: a row names one figure and the words right before or right after it, never their order in the
text, so that a new wording is read if its words are known.

"cached" (1.0 to 1.3) is idle memory, not reserved: only so do the texts of that time add up
(4.01 GiB allocated, 356.00 MiB free, 5.54 GiB cached of 10.76 GiB).
"capacty" is 2.1's own spelling.  An asynchronous backend's "requested" is the request itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["AFTER", "BEFORE", "ERAS", "EXPANDABLE", "OPENINGS", "STATED", "Words", "openings"]


@dataclass(frozen=True, slots=True)
class Words:
    """One figure and the words beside it, as a regular expression without groups.

    figure: the field of `Figures` less "_bytes", or one of "others" (another process), "rest"
    (Apple: outside the allocator), "ignored".
    """

    figure: str
    words: str


BEFORE: tuple[Words, ...] = (
    Words("tried", r"to allocate|tried"),
    Words("tried", r"(?:requested|requesting|request)(?: (?:size|memory|bytes|allocation))?"),
    Words("tried", r"(?:allocation|allocating|allocate)(?: size| request)?|invalid buffer size"),
    Words("limit", r"(?:max|maximum|is|memory) allowed|allowed|pytorch limit|memory limit"),
    Words("limit", r"limit \([^()]{0,80}\)"),
    Words("total", r"(?:total )?capac(?:ity|ty)|device (?:limit|total|memory)"),
    Words("total", r"total(?: (?:gpu|device|memory|npu|xpu))*"),
    Words("free", r"free(?: \([^()]{0,40}\))?(?: (?:gpu |device )?memory)?|(?<!un)available"),
    Words("idle", r"(?:reserved (?:by pytorch )?but )?(?:unallocated|unused)|idle|cached"),
    Words("reserved", r"reserved(?: in total)?(?: by pytorch)?(?: memory)?"),
    Words("pool", r"(?:in )?private pools?"),
    Words("allocated", r"(?:already |currently |of the |mps )?allocated(?: memory| by pytorch)?"),
    Words("rest", r"other allocations"),
    Words("process", r"this process (?:has|uses|is using)"),
    Words("others", r"process \d{1,12}(?: \([^()]{0,80}\))? (?:has|uses|is using)"),
    Words("ignored", r"(?:current |currently )?active|reserve of"),
)
"""What a figure is when these words end right before it."""

AFTER: tuple[Words, ...] = (
    Words("total", r"total\b(?! (?:allocated|reserved))|(?:of )?(?:total )?capac(?:ity|ty)"),
    Words("pool", r"(?:allocated )?in private pools?"),
    Words("idle", r"reserved (?:in total )?(?:by pytorch )?but (?:unallocated|unused|free)"),
    Words("idle", r"cached|unallocated|idle|(?:reserved )?unused"),
    Words("reserved", r"reserved|in reserve"),
    Words("allocated", r"(?:already |currently )?allocated(?! in private)"),
    Words("free", r"(?:currently |still )?(?:free|available)"),
    Words("limit", r"allowed|(?:memory )?limit\b"),
    Words("process", r"(?:of )?memory in use by this process"),
    Words("tried", r"(?:was |were )?(?:requested|tried)"),
    Words("ignored", r"current(?:ly)? active|active"),
)
"""What a figure is when these words follow it at once."""

OPENINGS: tuple[tuple[str, bool], ...] = (
    (r"out\s{1,8}of\s{1,8}memory", True),
    (r"Allocation\s(?:failed\s)?on\sdevice|would\sexceed\sallowed\smemory", True),
    (r"failed\swith\sOOM|OUT_OF_MEMORY|preemptively\srejected", True),
    (r"not\senough\smemory|can't\sallocate\smemory", True),
    (r"STATUS_ALLOC_FAILED|Invalid\sbuffer\ssize", True),
    (
        r"(?:tri(?:ed|es)|trying|fail(?:ed|ure)|unable|attempt(?:ed|ing)|need(?:ed|s)?|wanted)\sto\sallocate",
        False,
    ),
    (r"OutOfMemoryError|ErrorMemoryAllocation", False),
)
"""Words of an error.  True: enough to begin one right after another has ended."""

STATED: tuple[tuple[str, str], ...] = (
    ("per_process_memory_fraction limit", "fraction_limit"),
    ("more than 1EB", "impossible"),
)
"""Words that name the cause themselves, as regular expressions, and that cause."""

EXPANDABLE = "expandable_segments is enabled"
"""Words of a text that was written while expandable segments were on."""

ERAS: tuple[tuple[str, str], ...] = (
    (EXPANDABLE, "2.15"),
    ("optimizing-memory-usage-with", "2.11"),
    ("PYTORCH_ALLOC_CONF=", "2.10"),
    ("Graphs)", "2.4"),
    ("CONF=expandable_segments", "2.2"),
    ("capacty", "2.1"),
    (" has a total capacity of ", "2.2"),
    ("max_split_size_mb to avoid", "1.10"),
    ("reserved in total", "1.4"),
    (" cached)", "1.0"),
)
"""Words and the first release that printed them, the newest first."""


def openings() -> re.Pattern[str]:
    """All of `OPENINGS` as one expression; its group `strong` is set by those that are True."""
    strong = "|".join(words for words, is_strong in OPENINGS if is_strong)
    weak = "|".join(words for words, is_strong in OPENINGS if not is_strong)
    return re.compile(f"(?P<strong>{strong})|{weak}", re.IGNORECASE)
