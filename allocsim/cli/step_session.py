"""Session of `allocsim step`: lines such as "malloc 2MiB" are requests to a simulated allocator.

Rule: a line is parsed completely before anything is requested, so a wrong line changes nothing.
Blocks are numbered from 1 in the order of the requests; a failed request also takes a number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from allocsim.cli.usage import UsageError
from allocsim.units import parse_size

if TYPE_CHECKING:
    from allocsim.analysis.step import Decision, Request
    from allocsim.core import CachingAllocator

HELP = """\
  malloc SIZE [stream=N]    request a block, e.g. 3MiB or 512; blocks are numbered from 1
  free N                    free block N
  record N stream=M         record_stream: the free of block N waits for stream M
  sync [stream=N]           that stream, or every stream, finishes its work
  empty_cache               torch.cuda.empty_cache()
  fraction F                set_per_process_memory_fraction(F)
  conf TEXT                 change options at run time
  begin P, end P            start, or stop, to allocate in private pool P
  release P                 release private pool P
  segments, stats           print every segment, or every statistic that is not 0
  help, quit
"""
_MOST_DIGITS = 20
"""Digits allowed in a number; a stream's handle is an address."""
_OP_WORDS = {"e": "empty_cache", "S": "sync"}


class Session:
    """Simulated allocator, and the blocks that a session requested, by number."""

    def __init__(self, allocator: CachingAllocator) -> None:
        self.allocator = allocator
        self.numbers: dict[int, int] = {}
        self._blocks: list[int | None] = []

    def ask(self, line: str) -> Decision:
        """Send the request of a line such as "malloc 2MiB" to the allocator; return its decision.

        Raises UsageError for a wrong line.
        """
        from allocsim.analysis.step import step  # noqa: PLC0415

        try:
            request = self._request(line.split())
            decision = step(self.allocator, request)
        except ValueError as error:
            raise UsageError(f"{line.strip()!r}: {error} (help lists the requests)") from None
        if request.action == "malloc":
            self._blocks.append(decision.address)
            if decision.address is not None:
                self.numbers[decision.address] = len(self._blocks)
        elif request.action == "free" and request.address is not None:
            self._blocks[int(line.split()[1]) - 1] = None
            self.numbers.pop(request.address, None)
        return decision

    def _request(self, words: list[str]) -> Request:
        from allocsim.analysis.step import Request  # noqa: PLC0415

        plain = [word for word in words[1:] if not word.startswith("stream=")]
        named = [word.removeprefix("stream=") for word in words if word.startswith("stream=")]
        stream = _whole(named[0], "a stream") if named else 0
        word, first = words[0], plain[0] if plain else ""
        if word in ("free", "record"):
            action = "free" if word == "free" else "record_stream"
            return Request(action, address=self._block(first), stream=stream)
        made: Request | None = {
            "malloc": lambda: Request("malloc", parse_size(" ".join(plain)), stream=stream),
            "sync": lambda: Request("synchronize", stream=stream if named else None),
            "empty_cache": lambda: Request("empty_cache"),
            "fraction": lambda: Request("set_per_process_memory_fraction", value=_fraction(first)),
            "conf": lambda: Request("set_allocator_settings", value=first),
            "begin": lambda: Request("begin_allocate_to_pool", pool=_whole(first, "a pool")),
            "end": lambda: Request("end_allocate_to_pool", pool=_whole(first, "a pool")),
            "release": lambda: Request("release_pool", pool=_whole(first, "a pool")),
        }.get(word, lambda: None)()
        if made is None:
            raise ValueError("no such request")
        return made

    def _block(self, text: str) -> int:
        at = _whole(text, "the number of a block")
        address = self._blocks[at - 1] if 0 < at <= len(self._blocks) else None
        if address is None:
            raise ValueError(f"block {at} is not allocated")
        return address


def _whole(text: str, what: str) -> int:
    """Parse a whole number; raise ValueError with the description `what` for other text."""
    if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
        given = f"{text[:80]!r} is not {what}" if text else f"{what} is missing"
        raise ValueError(f"{given}; expected a whole number, e.g. 1")
    return int(text)


def _fraction(text: str) -> float:
    """Parse a memory fraction; raise ValueError for text that is not a number."""
    try:
        return float(text)
    except ValueError:
        given = f"{text[:80]!r} is not a fraction" if text else "the fraction is missing"
        raise ValueError(f"{given}; expected 0 to 1, e.g. 0.5") from None


def lines_of(ops: list[list[Any]]) -> list[str]:
    """Return a script of requests as lines of a session.

    ops: requests of the script; its stream n has the handle n * 4096.
    Raises UsageError for a request that has no form as a line.
    """
    numbers: dict[object, int] = {}
    n_mallocs = 0
    lines = []
    for at, op in enumerate(ops):
        try:
            letter, *rest = op
            if letter == "a":
                n_mallocs += 1
                numbers[rest[0]] = n_mallocs
                lines.append(f"malloc {int(rest[1])} stream={int(rest[2]) * 4096}")
            elif letter == "f":
                lines.append(f"free {numbers[rest[0]]}")
            elif letter == "r":
                lines.append(f"record {numbers[rest[0]]} stream={int(rest[1]) * 4096}")
            elif letter == "s":
                lines.append(f"sync stream={int(rest[0]) * 4096}")
            elif letter == "m":
                lines.append(f"fraction {rest[0]}")
            elif letter == "c":
                lines.append(f"conf {rest[0]}")
            elif letter == "P":
                word = {"b": "begin", "e": "end", "r": "release"}[rest[0]]
                lines.append(f"{word} {int(rest[1])}")
            else:
                lines.append(_OP_WORDS[letter])
        except (KeyError, IndexError, TypeError, ValueError):
            raise UsageError(f"op {at}: {op!r} is not an op of a session") from None
    return lines
