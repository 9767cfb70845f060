"""Tables of the words that PyTorch and its relatives print next to a figure.

A row has one figure and the words directly before or after it.  The order of figures in the text
does not matter, so a new text is understood if its words are known.

"cached" (1.0 to 1.3) is idle and not reserved memory, since only then the figures of such texts add
up (4.01 GiB allocated, 356.00 MiB free, 5.54 GiB cached of 10.76 GiB).  2.1 spells "capacty".  In
texts of the asynchronous backend "requested" is the request itself.
"""

from __future__ import annotations

import re

__all__ = ["AFTER", "BEFORE", "ERAS", "EXPANDABLE", "OPENINGS", "STATED", "openings"]


BEFORE: tuple[tuple[str, str], ...] = (
    ("tried", r"to allocate|tried"),
    ("tried", r"(?:requested|requesting|request)(?: (?:size|memory|bytes|allocation))?"),
    ("tried", r"(?:allocation|allocating|allocate)(?: size| request)?|invalid buffer size"),
    ("limit", r"(?:max|maximum|is|memory) allowed|allowed|pytorch limit|memory limit"),
    ("limit", r"limit \([^()]{0,80}\)"),
    ("total", r"(?:total )?capac(?:ity|ty)|device (?:limit|total|memory)"),
    ("total", r"total(?: (?:gpu|device|memory|npu|xpu))*"),
    ("free", r"free(?: \([^()]{0,40}\))?(?: (?:gpu |device )?memory)?|(?<!un)available"),
    ("idle", r"(?:reserved (?:by pytorch )?but )?(?:unallocated|unused)|idle|cached"),
    ("reserved", r"reserved(?: in total)?(?: by pytorch)?(?: memory)?"),
    ("pool", r"(?:in )?private pools?"),
    ("allocated", r"(?:already |currently |of the |mps )?allocated(?: memory| by pytorch)?"),
    ("rest", r"other allocations"),
    ("process", r"this process (?:has|uses|is using)"),
    ("others", r"process \d{1,12}(?: \([^()]{0,80}\))? (?:has|uses|is using)"),
    ("ignored", r"(?:current |currently )?active|reserve of"),
)
"""(name, words directly before the size) with words as regular expressions without groups.

A name is a field of `Figures` without "_bytes", or "others" (another process), "rest" (memory
outside Apple's allocator) or "ignored".
"""

AFTER: tuple[tuple[str, str], ...] = (
    ("total", r"total\b(?! (?:allocated|reserved))|(?:of )?(?:total )?capac(?:ity|ty)"),
    ("pool", r"(?:allocated )?in private pools?"),
    ("idle", r"reserved (?:in total )?(?:by pytorch )?but (?:unallocated|unused|free)"),
    ("idle", r"cached|unallocated|idle|(?:reserved )?unused"),
    ("reserved", r"reserved|in reserve"),
    ("allocated", r"(?:already |currently )?allocated(?! in private)"),
    ("free", r"(?:currently |still )?(?:free|available)"),
    ("limit", r"allowed|(?:memory )?limit\b"),
    ("process", r"(?:of )?memory in use by this process"),
    ("tried", r"(?:was |were )?(?:requested|tried)"),
    ("ignored", r"current(?:ly)? active|active"),
)
"""(name, words directly after the size)."""

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
"""(words that begin an error, True if they begin a new error even close to the last one)."""

STATED: tuple[tuple[str, str], ...] = (
    ("per_process_memory_fraction limit", "fraction_limit"),
    ("more than 1EB", "impossible"),
)
"""(words that state a cause, name of the cause), with words as regular expressions."""

EXPANDABLE = "expandable_segments is enabled"
"""Words that PyTorch prints only if expandable segments are on."""

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
"""(words, first release that printed them), newest first."""


def openings() -> re.Pattern[str]:
    """Return `OPENINGS` as one expression; the group `strong` matches the words marked True."""
    strong = "|".join(words for words, is_strong in OPENINGS if is_strong)
    weak = "|".join(words for words, is_strong in OPENINGS if not is_strong)
    return re.compile(f"(?P<strong>{strong})|{weak}", re.IGNORECASE)
