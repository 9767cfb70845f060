"""Remove the sentences about other processes from the text of an out-of-memory error.

Rule: the model does not print these sentences, because their numbers come from the driver.  A
sentence is removed only if it has exactly the words that PyTorch writes.
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
    """GPU memory of a process.

    number: process id; None for the process that printed the text.
    size: memory as printed, e.g. "1.50 GiB".
    """

    number: int | None
    size: str


def without_processes(text: str) -> tuple[str, tuple[ProcessMemory, ...]]:
    """Return the text without the sentences about processes, and the removed processes in order.

    The sentences follow the sentence about free memory.  A text without that sentence, or with two
    sentences about its own process, is returned unchanged.
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
