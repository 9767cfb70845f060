"""Search for out-of-memory errors in a text, such as a line, a traceback or megabytes of log.

An error begins with opening words, such as "out of memory" or "Tried to allocate", and ends where
the next error begins; opening words that are close together belong to one error.  The time is
linear in the length of the text, and no text raises an exception.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest

from allocsim.analysis.explain.cause import Figures, cause_of
from allocsim.analysis.explain.message_words import (
    ERAS,
    EXPANDABLE,
    HOST,
    KILLED,
    OUT_OF_TIME,
    STATED,
    Reading,
    TextRelease,
    openings,
    read_figures,
    sizes_in,
)
from allocsim.analysis.explain.server_phases import Phase, phases_at
from allocsim.core import AllocatorConfig
from allocsim.units import MIB, format_size

_OPENING = openings()
# Distances in characters.
_LONGEST = 4000  # length of one error with the longest hints
_SAME = 50  # two openings within this distance on a line belong to one error
_NEAR = 300  # the same for two openings without a size between them
_APART = 800  # a request within this distance belongs to the sizes before it
_REQUEST = 40  # the requested size is printed within this distance after an opening
_LEAD = 120  # the device may be named within this distance before an opening
_ENDING = 1000  # characters at the end of a log that are searched for a killed process
_COLOUR = re.compile(r"(?:\x1b|\\u001b|\\x1b|\\033)\[[0-9;]{0,20}[A-Za-z]")
_ESCAPED = re.compile(r"\\+[nrt]")
_PREFIX = re.compile(
    r"^(?:\s*(?:"
    r"\[[^\[\]\n]{1,60}\]:?"  # [rank0]:  [default3]:  [2024-05-11 02:24:26,980]
    r"|\([^()\n]{1,60}(?:pid|rank|worker)[^()\n]{0,60}\)"  # (Worker pid=123)
    r"|rank\s?\d{1,6}:|\d{1,6}:\s(?=\S)"
    r"|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S{0,12}|\d\d-\d\d \d\d:\d\d:\d\d|\d\d:\d\d:\d\d\S{0,12}"
    r"|(?:ERROR|WARNING|INFO|CRITICAL|FATAL|DEBUG|WARN)\b:?|[>|#]+(?=\s)|E(?=\s{2,})"
    r"|[\w.]+\.py\S*|-(?=\s)"
    r"))+[ \t]*",
    re.MULTILINE | re.IGNORECASE,
)
_SUFFIX = re.compile(r"\r$|\s*\|\s*$")
_NAMED = re.compile(
    r"\b(CUDA|HIP|NPU|XPU|MPS|MUSA|MLU|HPU|GCU)(?: \w{1,10})?(?: error:)? out\s+of\s+memory", re.I
)
_BACKEND = re.compile(r"\b(CUDA|HIP|NPU|XPU|MPS|CPU|MUSA|MLU|HPU|GCU)\b", re.IGNORECASE)
_ASYNC = re.compile(
    r"Allocation (?:failed )?on device|would exceed allowed memory|free_upper_bound"
)
_NVML = re.compile(r"NVML_SUCCESS\s==\sr\s")
_WARNING = re.compile(r"failed\swith\sOOM", re.IGNORECASE)  # of the allocator, before the error
_FIRST_WORD = re.compile(r"THCudaCheck FAIL")  # printed before the error itself
_GPU = re.compile(r"(?P<old>[(\uff08]\s?)?GPU\s?\d{1,3}", re.IGNORECASE)
_RANK = re.compile(r"\[?\b(?:default|rank)[ =:]?(\d{1,6})\]?", re.IGNORECASE)
_GPU_NUMBER = re.compile(r"\bGPU (\d{1,3})\b")
_COMPLETE = re.compile(r"total capaci?ty", re.IGNORECASE)  # of a text that prints idle memory too
_VARIABLE = re.compile(r"PYTORCH_(?:(?:CUDA|HIP|NPU|XPU|MUSA)_)?ALLOC_CONF")


@dataclass(frozen=True, slots=True)
class OomMessage:
    """One out-of-memory error in a text.

    text: words of the error up to its last size, without line prefixes.
    line: number of its line in the text, from 1.
    figures: sizes that it prints; `has_figures` is False if there are none.
    backend: "CUDA", "HIP", "NPU", "XPU", "MPS" or another name; "" if the text names no backend.
    others: (process id, bytes) of the other processes that the error lists.
    variable: environment variable that the error advises to set; "" if there is none.
    since: oldest PyTorch release that prints these words; None if unknown.
    is_expandable, is_async: True if the words show expandable segments, or cudaMallocAsync.
    is_killed: True if the text only shows that the process was killed.
    is_of_nvml: True if PyTorch failed while it wrote the text, because NVML refused to answer.
    stated: name of the cause that the error states; "" if there is none.
    phase: phase of a serving engine at the error; None if the text shows none.
    rank, gpu: rank of the process and number of its GPU; None if the text does not name them.
    """

    text: str
    line: int
    figures: Figures
    backend: str = ""
    others: tuple[tuple[int, int], ...] = ()
    variable: str = ""
    since: str | None = None
    is_expandable: bool = False
    is_async: bool = False
    is_killed: bool = False
    is_of_nvml: bool = False
    phase: Phase | None = None
    rank: int | None = None
    gpu: int | None = None
    stated: str = ""
    has_figures: bool = False

    @property
    def place(self) -> str:
        """Rank and GPU, such as "rank 1, GPU 1", as far as they are known."""
        numbers = (("rank", self.rank), ("GPU", self.gpu))
        return ", ".join(f"{name} {number}" for name, number in numbers if number is not None)


@dataclass(slots=True)
class _Span:
    start: int
    end: int
    is_strong: bool


def find_messages(text: str) -> tuple[OomMessage, ...]:
    if "\x1b" in text:
        text = _COLOUR.sub("", text)
    messages: list[tuple[OomMessage, bool]] = []
    line, counted, floor = 1, 0, 0
    spans = [*_spans(text)]
    phases = phases_at(text, [span.start for span in spans])
    for span, phase in zip(spans, phases, strict=True):
        line += text.count("\n", counted, span.start)
        counted = span.start
        messages.append((_message(text, span, floor, line, phase), span.is_strong))
        floor = span.end
    # A class name without sizes may be a line of source code; drop it if there are real errors.
    found = [message for message, is_strong in messages if is_strong or message.has_figures]
    found = [
        each for each, later in zip_longest(found, found[1:]) if not _is_warning_before(each, later)
    ]
    found = found or [message for message, _ in messages[:1]] or [*_errors_in_other_words(text)]
    return tuple(found or _killed(text))


def _killed(text: str) -> Iterator[OomMessage]:
    start = max(0, len(text.rstrip()) - _ENDING)
    found = KILLED.search(text, start)
    if found is not None and OUT_OF_TIME not in text[start:]:
        at = found.start()
        words = " ".join(text[at : at + _LEAD].split())
        line = text.count("\n", 0, at) + 1
        yield OomMessage(words, line, Figures(), "CPU", stated="host_memory", is_killed=True)


def _is_warning_before(message: OomMessage, later: OomMessage | None) -> bool:
    if later is None or _WARNING.match(message.text) is None:
        return False
    tried, printed = message.figures.tried_bytes, later.figures.tried_bytes
    return tried is not None and printed is not None and abs(tried - printed) <= printed // 100


def _errors_in_other_words(text: str) -> Iterator[OomMessage]:
    # The sizes of PyTorch's message keep their order around the number of the GPU in any language,
    # and the parts add up to at most the device's memory.
    for match in _GPU.finditer(text[: _LONGEST * 4]):
        lead = max(0, match.start() - _NEAR)
        sizes = [size for _, size in sizes_in(text[lead : match.end() + _APART])]
        if len(sizes) != 5 or not {"CUDA", "PyTorch"} & set(re.findall(r"[A-Za-z]+", text)):
            continue
        tried, total, first, second, third = sizes
        if match["old"]:
            held, figures = second + third, {"allocated_bytes": first, "reserved_bytes": third}
            figures["free_bytes"] = second
        else:
            held, figures = first + second + third, {"allocated_bytes": second}
            figures |= {"free_bytes": first, "idle_bytes": third}
        if held <= total * 1.01:
            found = Figures(tried_bytes=tried, total_bytes=total, **figures, printed=True)
            line = text.count("\n", 0, match.start()) + 1
            yield OomMessage(text[lead : match.end()], line, found, "CUDA", has_figures=True)
            return


def _spans(text: str) -> Iterator[_Span]:
    current: _Span | None = None
    last, has_request = 0, False
    for match in _OPENING.finditer(text):
        start, is_strong = match.start(), match["strong"] is not None
        if current is not None and not _continues(text, current, last, match, has_request):
            current.end = min(current.end, start)
            yield current
            current = None
        if current is None:
            current, has_request = _Span(start, start + _LONGEST, is_strong), False
        current.is_strong = current.is_strong or is_strong
        last = match.end()
        has_request = has_request or (not is_strong and _has_size(text[last : last + _REQUEST]))
    if current is not None:
        yield current


def _continues(
    text: str, current: _Span, last: int, match: re.Match[str], has_request: bool
) -> bool:
    start = match.start()
    between = text[last : min(start, last + _APART)]
    if start - last >= _APART or start - current.start >= _LONGEST:
        return False
    if not match["strong"]:
        return not has_request or (start - last < _NEAR and not _has_size(between))
    if _has_size(between):
        return False
    if current.is_strong and not _FIRST_WORD.search(text[max(0, current.start - _LEAD) : last]):
        return start - last < _SAME if "\n" not in between else between.strip() in {"", "("}
    return start - last < _NEAR


def _has_size(text: str) -> bool:
    return next(sizes_in(text), None) is not None


def _message(text: str, span: _Span, floor: int, line: int, phase: Phase | None) -> OomMessage:
    plain, reading = _best_reading(text[span.start : span.end])
    lead = text[max(0, span.start - _APART) : span.start].rpartition("\n")[2]
    own_lead = text[max(floor, span.start - len(lead)) : span.start]
    if not reading.count and _has_size(own_lead):
        plain, reading = _best_reading(own_lead + text[span.start : span.end])
    words = plain[: reading.end or _LEAD].strip()
    variable = _VARIABLE.search(plain)
    backend = _backend(lead[-_LEAD:], words[:_NEAR])
    is_of_host = backend == "CPU" and reading.figures.total_bytes is None
    stated = next((cause for said, cause in STATED if re.search(said, plain)), "")
    return OomMessage(
        text=words,
        line=line,
        figures=reading.figures,
        has_figures=reading.count > 0,
        stated="host_memory" if is_of_host else stated,
        backend=backend,
        phase=phase,
        # Ranks that write at once may share a line; the nearest name is that of the error.
        rank=int(ranks[-1]) if (ranks := _RANK.findall(lead)) else None,
        gpu=int(gpu[1]) if (gpu := _GPU_NUMBER.search(words)) else None,
        others=reading.others,
        variable=variable[0] if variable else "",
        since=next((era for said, era in ERAS if said in plain), None),
        is_expandable=EXPANDABLE in plain,
        is_async=_ASYNC.search(plain[:_NEAR]) is not None,
        is_of_nvml=_NVML.search(plain[:_NEAR]) is not None,
    )


def _backend(lead: str, words: str) -> str:
    # Other names are less reliable, since ROCm prints "torch.cuda" as well.
    if HOST.search(lead + words):
        return "CPU"
    found = _NAMED.findall(lead + words) or _BACKEND.findall(lead)[-1:]
    found = found or _BACKEND.findall(words[:_LEAD])
    return found[0].upper() if found else ""


def _best_reading(raw: str) -> tuple[str, Reading]:
    # A terminal may break lines within a word, so lines are joined without a blank if more sizes
    # are recognised that way.
    lines = _ESCAPED.sub("\n", _COLOUR.sub("", raw)).split("\n")
    lines = [_SUFFIX.sub("", _PREFIX.sub("", line)) for line in lines]
    spaced = " ".join(" ".join(lines).split())
    reading = read_figures(spaced)
    is_on_one_line = reading.count and reading.end <= len(" ".join(lines[0].split()))
    if len(lines) > 1 and not is_on_one_line:
        tight = " ".join("".join(lines).split())
        other = read_figures(tight)
        if (other.count, other.understood) > (reading.count, reading.understood):
            return tight, other
    return spaced, reading


@dataclass(frozen=True, slots=True)
class Situation:
    """Out-of-memory error with everything known about it, as the basis of the advice.

    message, figures: the error, and the sizes known about it.
    cause: name of the cause, one of `MESSAGE_CAUSES`.
    config: allocator settings that the user gave; None if none are given.
    release: PyTorch release given by the user, or recognised from the words of the error; None if
        unknown.
    other_total: total memory, in bytes, of another device that the user asks about; or None.
    """

    message: OomMessage
    figures: Figures
    cause: str
    config: AllocatorConfig | None = None
    release: TextRelease | None = None
    other_total: int | None = None
    is_windows: bool = False

    @property
    def variable(self) -> str:
        """Environment variable for options: named in the text, or else derived from the backend."""
        backend = self.message.backend if self.message.backend in ("HIP", "NPU") else "CUDA"
        return self.message.variable or f"PYTORCH_{backend}_ALLOC_CONF"

    @property
    def has_native_allocator(self) -> bool:
        return not self.message.is_async and self.message.backend not in ("MPS", "CPU", "XPU")

    @property
    def is_expandable(self) -> bool:
        config = self.config
        return self.message.is_expandable or (config is not None and config.expandable_segments)

    @property
    def max_split_size_mb(self) -> int | None:
        if self.config is None or self.config.max_split_size_stat() < 0:
            return None
        return self.config.max_split_size // MIB

    def knows(self, option: str) -> bool:
        if self.release is None or self.message.backend == "NPU":
            return True
        return option in self.release.options


def most_idle_of(message: OomMessage, figures: Figures) -> int | None:
    """Return an upper bound of idle memory in bytes, for a text cut off before its idle memory.

    Return None for other texts, and if free memory plus this bound is less than the request.
    """
    is_cut = _COMPLETE.search(message.text) is not None and figures.idle is None
    free, tried, total = figures.free_bytes, figures.tried_bytes, figures.capacity
    if not is_cut or message.is_async or None in (free, tried, total):
        return None
    assert free is not None and tried is not None and total is not None
    held = total - free if figures.process_bytes is None else figures.process_bytes
    most = max(0, min(held, total) - (figures.allocated_bytes or 0))
    return most if most + free + figures.doubt(tried, free, most) >= tried else None


def outside_of(message: OomMessage, figures: Figures) -> str:
    """Return a clause on other programs, such as "process 41 held 12 GiB of the card", or "".

    The clause is "" unless the memory of other programs is at least a tenth of the device, the
    request would have fitted without it, and the error is not due to a memory fraction.
    """
    capacity, free, tried = figures.capacity, figures.free_bytes, figures.tried_bytes
    if capacity is None or free is None or tried is None or message.backend == "MPS":
        return ""
    if cause_of(figures) == "fraction_limit":
        return ""
    size, holder = figures.others_bytes, "other processes"
    if size is None:
        held = max(figures.reserved or 0, min(figures.process_bytes or 0, capacity))
        size, holder = capacity - free - held, "programs or libraries outside this PyTorch"
        if not held:
            return ""
    elif len(message.others) == 1:
        holder = f"process {message.others[0][0]}"
    if size < capacity // 10 or size + free < tried:
        return ""
    return f"{holder} held {format_size(size)} of the card"
