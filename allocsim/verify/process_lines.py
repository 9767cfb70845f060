"""Sentences of an out-of-memory text about the processes that use the card.

Rule: the allocator does not decide what the driver reports about processes, so the model prints
none of these sentences.  They are removed only if they have exactly the form that PyTorch gives
them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["ProcessMemory", "without_processes"]

_SIZE = r"\d+ bytes|\d+\.\d\d [KMG]iB"
_PROCESS = re.compile(
    r"(?:Including non-PyTorch memory, (?P<own>this process)|Process (?P<number>[1-9]\d*))"
    rf" has (?P<size>{_SIZE}) memory in use\. "
)
_BEFORE = re.compile(rf"of which (?:{_SIZE}) is free\. ")


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """Process and its memory.

    number: process id; None for the process that prints the text.
    size: as printed.
    """

    number: int | None
    size: str


def without_processes(text: str) -> tuple[str, tuple[ProcessMemory, ...]]:
    """Return the text without the sentences about processes, and these in their order.

    They follow the sentence about free memory.  Any other text is returned unchanged, also a text
    that names this process twice.
    """
    before = _BEFORE.search(text)
    if before is None:
        return text, ()
    at = before.end()
    found: list[ProcessMemory] = []
    while (match := _PROCESS.match(text, at)) is not None:
        number = None if match["own"] else int(match["number"])
        found.append(ProcessMemory(number, match["size"]))
        at = match.end()
    if [process.number for process in found].count(None) > 1:
        return text, ()
    return text[: before.end()] + text[at:], tuple(found)
