"""Read the sizes in the text of an out-of-memory error, as PyTorch and related libraries print it.

The words next to a size say which size it is, so a new text with known words is understood,
whatever the order of its sizes.  A size that the text repeats counts once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from allocsim.analysis.explain.cause import Figures
from allocsim.core import NEWEST, RELEASES, Release, find_release
from allocsim.errors import ConfigError

EARLIER: tuple[tuple[str, tuple[str, ...]], ...] = (("1.0", ()), ("1.10", ("max_split_size_mb",)))
"""PyTorch releases older than the oldest simulated release, as (release, options it introduced).

Only options that the advice may name are included.
"""

_VERSION = re.compile(r"(\d{1,3})\.(\d{1,3})")


@dataclass(frozen=True, slots=True)
class TextRelease:
    """Properties of a PyTorch release that the advice depends on.

    rules: the release as `allocsim.core` models it; for older releases, the oldest that it models.
    options: options of PYTORCH_CUDA_ALLOC_CONF that the release accepts.
    prints_limit: True if the error text of the release contains the memory limit.
    """

    rules: Release
    options: frozenset[str]
    prints_limit: bool


def text_release(version: str) -> TextRelease:
    number = _number(version)
    if number is None:
        raise ConfigError(
            f"torch version {version[:80]!r} is not a release; expected {EARLIER[0][0]} to {NEWEST}"
        )
    first = next(iter(RELEASES.values()))
    if number >= (_number(first.version) or ()):
        rules = find_release(version)
        return TextRelease(rules, rules.options, "{limit}" in rules.oom_text)
    options = [new for since, new in EARLIER if (_number(since) or ()) <= number]
    return TextRelease(first, frozenset().union(*options), prints_limit=False)


def _number(version: str) -> tuple[int, ...] | None:
    found = _VERSION.match(version)
    return None if found is None else (int(found[1]), int(found[2]))


BEFORE: tuple[tuple[str, str], ...] = (
    ("tried", r"to allocate|tried"),
    ("tried", r"(?:requested|requesting|request)(?: (?:size|memory|bytes|allocation))?"),
    ("tried", r"(?:allocation|allocating|allocate)(?: size| request)?|invalid buffer size"),
    ("largest", r"(?:block )?(?:with )?size larger than"),
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
"""Pairs (name of a size, regular expression for the words directly before the size).

A name is a field of `Figures` without "_bytes", or "others" (another process), "rest" (memory
outside Apple's allocator) or "ignored" (not used).  The expressions have no capturing groups.
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
"""Pairs (name of a size as in `BEFORE`, regular expression for the words directly after it)."""

OPENINGS: tuple[tuple[str, bool], ...] = (
    (r"(?<!you\sran\s)out\s{1,8}of\s{1,8}memory", True),
    (r"Allocation\s(?:failed\s)?on\sdevice|would\sexceed\sallowed\smemory", True),
    (r"failed\swith\sOOM|OUT_OF_MEMORY|preemptively\srejected", True),
    (r"not\senough\smemory|can't\sallocate\smemory", True),
    (r"STATUS_ALLOC_FAILED|Invalid\sbuffer\ssize", True),
    (r"NOT\sallocate\smemory\sblock", True),
    (r"NVML_SUCCESS\s==\sr\s", True),
    (r"free_upper_bound\s\+\spytorch_used_bytes", True),
    (r"ERROR_OUT_OF_(?:DEVICE_MEMORY|HOST_MEMORY|RESOURCES)", True),
    (r"failed\sto\sCUDA\s[mc]alloc", True),
    (
        r"(?:tri(?:ed|es)|trying|fail(?:ed|ure)|unable|attempt(?:ed|ing)|need(?:ed|s)?|wanted)\sto\sallocate",
        False,
    ),
    (r"OutOfMemoryError|ErrorMemoryAllocation", False),
)
"""Pairs (regular expression for words that begin an error, True if they always begin one).

The second item is False for words that may also be inside an error, before its requested size.
"""

STATED: tuple[tuple[str, str], ...] = (
    ("per_process_memory_fraction limit", "fraction_limit"),
    ("more than 1EB", "impossible"),
)
"""Pairs (regular expression for words that state a cause, name of the cause)."""

HOST = re.compile(
    r"DefaultCPUAllocator|alloc_cpu\.cpp|killed process \d|invoked oom-killer", re.IGNORECASE
)
"""Words of an error for lack of host memory (RAM), from PyTorch or from the kernel's log."""

KILLED = re.compile(
    r"^(?:[^\n]{0,120}[\s\d])?Killed(?:[ \t\r]*$| {2,}\S)"
    r"|\bexit[ _]?(?:code|status)?\s{0,4}:?\s?(?:137|-9)\b"
    r"|Signal 9 \(SIGKILL\)|died with <Signals\.SIGKILL",
    re.MULTILINE,
)
"""Words at the end of a log whose process was killed; a shell prints the command after them."""

OUT_OF_TIME = "TIME LIMIT"
"""Words that Slurm prints when it kills a job that ran too long."""

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
"""Pairs (words of an error, first PyTorch release that printed them).

The first item whose words are in the text gives the PyTorch release.
"""


def openings() -> re.Pattern[str]:
    strong = "|".join(words for words, is_strong in OPENINGS if is_strong)
    weak = "|".join(words for words, is_strong in OPENINGS if not is_strong)
    return re.compile(f"(?P<strong>{strong})|{weak}", re.IGNORECASE)


_SIZE = re.compile(
    r"(?<![\w.,/-])(?P<digits>\d{1,3}(?:,\d{3}){1,8}|\d{1,24})(?P<decimals>[.,]\d{1,12})?"
    r"(?:\s?(?P<unit>bytes?|[kmgtpe]i?b?|b)(?![\w%/]))?(?![\d.]*\d|/)",
    re.IGNORECASE | re.ASCII,
)
_SHIFT = {"k": 10, "m": 20, "g": 30, "t": 40, "p": 50, "e": 60}
_BESIDE = 100  # characters before and after a size that are searched for its name
_SHORT = 40  # characters before a size that are searched for a colon
_FARTHEST = 400  # largest number of characters between two sizes of one error
_ENDING = re.compile(
    r"if reserved|see documentation|please use|memory summary|traceback \(|time taken",
    re.IGNORECASE,
)
"""Words that end an error's text; sizes after them do not belong to the error."""

_UNSET = 1 << 64  # printed value of an unset limit and of an unknown size


def _either(rows: tuple[tuple[str, str], ...]) -> str:
    return "|".join(f"(?P<{figure}_{i}>{words})" for i, (figure, words) in enumerate(rows))


_FLAGS = re.IGNORECASE | re.ASCII
_JOINED = re.compile(
    rf"(?<![\w-])(?:{_either(BEFORE)})['\"]?(?:\s*[:=]\s*| (?:is|of|was|has|at) )['\"~]?\Z", _FLAGS
)
_CONNECTED = re.compile(r"(?:[:=]\s*|\s(?:is|of|was|has|at)\s)['\"~]?\Z", _FLAGS)
"""Colon or verb between the name of a size and the size: a fast test before names are searched."""

_TOUCHING = re.compile(
    rf"(?<![\w-])(?:{_either(BEFORE)})\s+(?:(?:about|approximately|a|of)\s+)?\Z", _FLAGS
)
_FOLLOWING = re.compile(
    rf"\s*(?:(?:is|are|was|has been|of|memory)\s+)*(?:{_either(AFTER)})", _FLAGS
)


@dataclass(frozen=True, slots=True)
class Reading:
    """Sizes that were recognised in one text.

    others: (process id, bytes) of each other process.
    count: number of recognised sizes.
    end: position of the end of the last size.
    understood: number of characters in the recognised words next to sizes; of two readings of a
        text, the reading with more such characters is better.
    """

    figures: Figures
    others: tuple[tuple[int, int], ...]
    count: int
    end: int
    understood: int


def sizes_in(text: str) -> Iterator[tuple[int, int]]:
    """Yield (position, bytes) of every number in `text` that has a unit."""
    for match in _SIZE.finditer(text):
        if match["unit"]:
            yield match.start(), _bytes(match)


def read_figures(text: str) -> Reading:
    """Return the sizes in the text of one error; stop before the sizes of a second request."""
    found: dict[str, int] = {}
    others: list[tuple[int, int]] = []
    end = understood = 0
    ending = _ENDING.search(text)
    last = ending.start() if ending else len(text)
    for figure, match, words in _named_sizes(text):
        size = _bytes(match)
        if end and (match.start() - end > _FARTHEST or match.start() > last):
            break
        if figure == "tried" and found.get("tried", size) != size:
            break
        end = match.end()
        understood += len(words)
        if size >= _UNSET and figure in ("process", "others"):
            continue  # under WSL the driver does not know the sizes of processes
        if figure == "others":
            others.append((int(re.sub(r"\D", "", words.split("(")[0]) or 0), size))
        else:
            found.setdefault(figure, size)
    count = len(found) + len(others)
    return Reading(_figures(found, others), tuple(others), count, end, understood)


def _named_sizes(text: str) -> Iterator[tuple[str, re.Match[str], str]]:
    # Yields (name as in `Figures`, match of the size, words that give its meaning).
    for match in _SIZE.finditer(text):
        before = text[max(0, match.start() - _BESIDE) : match.start()]
        beside = _JOINED.search(before) if _CONNECTED.search(before[-_SHORT:]) else None
        if beside is None and match["unit"]:
            after = text[match.end() : match.end() + _BESIDE]
            beside = _FOLLOWING.match(after) or _TOUCHING.search(before)
        if beside is not None and beside.lastgroup is not None:
            yield beside.lastgroup.partition("_")[0], match, beside[0]


def _figures(found: dict[str, int], others: list[tuple[int, int]]) -> Figures:
    limit = found.get("limit")
    process = found.get("process")
    if process is None and "rest" in found and "allocated" in found:
        process = found["allocated"] + found["rest"]
    if process is None and others:
        process = _guessed_process_bytes(found, [size for _, size in others])
    names = ("tried", "total", "allocated", "reserved", "idle", "free", "pool", "largest")
    return Figures(
        **{f"{name}_bytes": found.get(name) for name in names},
        limit_bytes=None if limit is not None and limit >= _UNSET else limit,
        process_bytes=process,
        others_bytes=_of_others(others, process, this_process=found.get("process")),
        printed=True,
    )


def _of_others(
    others: list[tuple[int, int]], process: int | None, *, this_process: int | None
) -> int | None:
    sizes = [size for _, size in others]
    if this_process is None and process in sizes:
        sizes.remove(process)
    return sum(sizes) if sizes else None


def _guessed_process_bytes(found: dict[str, int], sizes: list[int]) -> int | None:
    # In a container the driver's process ids differ from the program's, so this process is guessed:
    # the smallest listed process that holds at least PyTorch's memory.
    held = found.get("reserved", found.get("allocated", 0) + found.get("idle", 0))
    return min((size for size in sizes if size >= held), default=max(sizes))


def _bytes(match: re.Match[str]) -> int:
    digits = match["digits"].replace(",", "")
    decimals = (match["decimals"] or "")[1:]
    shift = _SHIFT.get((match["unit"] or "b")[0].lower(), 0)
    return (int(digits + decimals) << shift) // int("1" + "0" * len(decimals))
