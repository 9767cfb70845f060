"""The option string, tokenised and parsed with the rules and errors of its release.

Rule: `, : [ ]` are tokens, blanks are dropped anywhere, everything else is a word.  Up to 2.9
separators are verified and the options before a bad one stay applied; from 2.10 any token
separates and a bad string changes nothing.  Numbers are read by prefix: "30.7" is the integer 30.
Source: semantics 8.2, 8.3, 1.2 (lists), 4.8 and 12.5 (reserves).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from allocsim.core.config import NO_DIVISIONS, AllocatorConfig
from allocsim.core.constants import (
    LARGE_BUFFER,
    MIN_LARGE_ALLOC,
    N_ROUNDUP_INTERVALS,
    UNLIMITED,
)
from allocsim.core.releases import Release
from allocsim.errors import ConfigError
from allocsim.units import MIB

__all__ = ["BadOptionError", "parse"]

MAX_LENGTH = 64 * 1024
"""Longer strings are refused before they are looked at; no environment holds one."""

_TOKEN = re.compile(r"[,:\[\]]|[^,:\[\]\s]+")
_INTEGER = re.compile(r"[+-]?\d{1,19}")
_FLOAT = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_RESERVE = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)([Gg]?)")
_INT_MAX = (1 << 31) - 1


class BadOptionError(ConfigError):
    """A refused option string.  `applied`: the settings in force after the refusal."""

    def __init__(self, text: str, applied: AllocatorConfig | None = None) -> None:
        super().__init__(text)
        self.applied = applied


def parse(text: str, release: Release, previous: AllocatorConfig | None = None) -> AllocatorConfig:
    """The settings that `text` makes of `previous` (default: a fresh process) in `release`.

    Raises BadOptionError for a string that the release refuses.
    """
    before = previous if previous is not None else AllocatorConfig(release)
    if len(text) > MAX_LENGTH:
        raise BadOptionError(
            f"the option string has {len(text)} characters; expected at most {MAX_LENGTH}",
            before,
        )
    words = _TOKEN.findall("".join(text.split()))
    parser = _Parser(words, release, before)
    try:
        return replace(parser.parse(), text=text)
    except BadOptionError as error:
        kept = parser.config if release.bad_option_keeps_earlier else before
        raise BadOptionError(str(error), replace(kept, text=before.text)) from None


@dataclass(slots=True)
class _Parser:
    """One pass over the tokens; `config` is what has been applied so far."""

    words: list[str]
    release: Release
    config: AllocatorConfig
    at: int = 0

    def parse(self) -> AllocatorConfig:
        self._reset()
        while self.at < len(self.words):
            key = self._take("an option")
            if key not in self.release.options or key in ",:[]":
                raise BadOptionError(self._unknown(key))
            self._separator(":", key)
            _READERS.get(key, _read_host)(self, key)
            if self.at < len(self.words):
                self._separator(",", key)
        return self.config

    def _reset(self) -> None:
        large = LARGE_BUFFER
        if "large_segment_size_mb" in self.release.options:
            large = self._large_segment_size()
        rounding = (
            large
            if self.release.parse_resets_non_split_rounding
            else self.config.max_non_split_rounding
        )
        self.config = replace(
            self.config,
            max_split_size=UNLIMITED,
            roundup_power2_divisions=NO_DIVISIONS,
            garbage_collection_threshold=0.0,
            large_segment_size=large,
            max_non_split_rounding=rounding,
        )

    def _large_segment_size(self) -> int:
        """large_segment_size_mb is read before the others, wherever it stands."""
        here = self.config.large_segment_size
        for i, word in enumerate(self.words[:-2]):
            if word == "large_segment_size_mb":
                size = _integer(self.words[i + 2], word) * MIB
                if size <= MIN_LARGE_ALLOC:
                    raise BadOptionError(
                        f"option large_segment_size_mb too small, must be > "
                        f"{MIN_LARGE_ALLOC // MIB}, got {self.words[i + 2]!r}"
                    )
                here = size
        return here

    def _take(self, expected: str) -> str:
        if self.at == len(self.words):
            raise BadOptionError(f"the option string ends where {expected} was expected")
        self.at += 1
        return self.words[self.at - 1]

    def _separator(self, wanted: str, after: str) -> None:
        found = self._take(f"{wanted!r} after {after}")
        if self.release.separators_checked and found != wanted:
            raise BadOptionError(f"expected {wanted!r} after {after}, got {found!r}")

    def _unknown(self, key: str) -> str:
        if self.release.old_error_words:
            return f"unrecognized option {key[:80]!r} in release {self.release.version}"
        return (
            f"unrecognized key {key[:80]!r} in Accelerator allocator config of release "
            f"{self.release.version}"
        )

    def value(self, key: str) -> str:
        return self._take(f"a value of {key}")

    def set(self, **changes: Any) -> None:
        self.config = replace(self.config, **changes)


def _integer(word: str, key: str) -> int:
    match = _INTEGER.match(word)
    if match is None or abs(int(match[0])) > _INT_MAX:
        raise BadOptionError(f"option {key} expects an integer, got {word[:80]!r}")
    return int(match[0])


def _float(word: str, key: str) -> float:
    match = _FLOAT.match(word)
    if match is None:
        raise BadOptionError(f"option {key} expects a number, got {word[:80]!r}")
    return float(match[0])


def _boolean(parser: _Parser, key: str) -> bool:
    word = parser.value(key)
    if word not in ("True", "False"):
        wanted = (
            "a single True/False argument"
            if parser.release.old_error_words
            else f"'True' or 'False' at index {parser.at - 1}"
        )
        raise BadOptionError(f"expected {wanted} for {key}, got {word[:80]!r}")
    return word == "True"


def _is_power_of_two(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0


def _read_threshold_size(parser: _Parser, key: str) -> None:
    """max_split_size_mb and max_non_split_rounding_mb: at least the large segment size."""
    word = parser.value(key)
    size = _integer(word, key)
    least = parser.config.large_segment_size // MIB
    inclusive = parser.release.thresholds_inclusive
    if size < least or (size == least and not inclusive):
        sign = ">=" if inclusive else ">"
        raise BadOptionError(f"option {key} too small, must be {sign} {least}, got {word[:80]!r}")
    parser.set(**{key.removesuffix("_mb"): size * MIB})


def _read_large_segment_size(parser: _Parser, key: str) -> None:
    parser.value(key)  # applied before the others


def _read_gc_threshold(parser: _Parser, key: str) -> None:
    word = parser.value(key)
    threshold = _float(word, key)
    if not 0.0 < threshold < 1.0:
        if parser.release.old_error_words:
            what = "small" if threshold <= 0.0 else "big"
            raise BadOptionError(
                f"garbage_collect_threshold too {what}, set it 0.0~1.0, got {word[:80]!r}"
            )
        raise BadOptionError(
            f"garbage_collection_threshold is invalid, set it in (0.0, 1.0), got {word[:80]!r}"
        )
    parser.set(garbage_collection_threshold=threshold)


def _read_backend(parser: _Parser, key: str) -> None:
    word = parser.value(key)
    if word == "cudaMallocAsync":
        raise BadOptionError("backend cudaMallocAsync is not modelled; expected native")
    if word != "native":
        raise BadOptionError(f"unknown allocator backend {word[:80]!r}, should be native")


def _read_flag(parser: _Parser, key: str) -> None:
    parser.set(**{key: _boolean(parser, key)})


def _read_fraction(parser: _Parser, key: str) -> None:
    word = parser.value(key)
    fraction = _float(word, key)
    if not 0.0 <= fraction <= 1.0:
        raise BadOptionError(f"{key} is invalid, set it in [0.0, 1.0], got {word[:80]!r}")
    parser.set(per_process_memory_fraction=fraction)


def _read_divisions(parser: _Parser, key: str) -> None:
    word = parser.value(key)
    if word == "[":
        parser.set(roundup_power2_divisions=_division_list(parser, key))
        return
    divisions = _integer(word, key)
    if not _is_power_of_two(divisions):
        raise BadOptionError(_bad_divisions(parser.release, word))
    parser.set(roundup_power2_divisions=(divisions,) * N_ROUNDUP_INTERVALS)


def _bad_divisions(release: Release, word: str) -> str:
    zero = " or 0" if release.list_divisions_may_be_zero else ""
    return f"for roundups the divisions have to be a power of 2{zero}, got {word[:80]!r}"


def _division_list(parser: _Parser, key: str) -> tuple[int, ...]:
    """`[k1:v1,...,>:vn]`: the first pair fills downwards, `>` fills upwards (1.2)."""
    divisions = list(NO_DIVISIONS)
    last = 0
    is_first = True
    while True:
        name = parser.value(key)
        if name == "]":
            return tuple(divisions)
        parser._separator(":", name[:80])
        value = _division_value(parser, key)
        if name == ">":
            start = last if parser.release.list_tail_overwrites_last or is_first else last + 1
            divisions[start:] = [value] * (N_ROUNDUP_INTERVALS - start)
        else:
            size = _integer(name, key)
            if not _is_power_of_two(size):
                raise BadOptionError(
                    f"the intervals have to be power of 2 and not negative, got {name[:80]!r}"
                )
            last = min(size.bit_length() - 1, N_ROUNDUP_INTERVALS - 1)
            divisions[0 if is_first else last : last + 1] = [value] * (last + 1 if is_first else 1)
        is_first = False
        if parser.at < len(parser.words) and parser.words[parser.at] != "]":
            parser._separator(",", f"{name[:80]}:{value}")


def _division_value(parser: _Parser, key: str) -> int:
    word = parser.value(key)
    value = _integer(word, key)
    if not _is_power_of_two(value) and not (
        value == 0 and parser.release.list_divisions_may_be_zero
    ):
        raise BadOptionError(_bad_divisions(parser.release, word))
    return value


def _read_reserve(parser: _Parser, key: str) -> None:
    """A fraction of the device or a number of GiB; malformed values are ignored (12.5)."""
    match = _RESERVE.fullmatch(parser.value(key))
    if match is not None and float(match[1]) > 0:
        parser.set(expandable_segments_reserve=(float(match[1]), match[2].upper()))


def _read_reserve_by_class(parser: _Parser, key: str) -> None:
    """`[name:x,...]`; no stream has a class here, so the values have no effect (4.8)."""
    depth = 0
    while True:
        word = parser.value(key)
        depth += (word == "[") - (word == "]")
        if depth <= 0:
            return


def _read_host(parser: _Parser, key: str) -> None:
    """Options of the pinned-host allocator: checked like the others, without effect here."""
    if key in _HOST_NUMBERS:
        word = parser.value(key)
        value: int | bool = _integer(word, key)
        if not _HOST_NUMBERS[key](value):
            raise BadOptionError(f"option {key} is out of range, got {word[:80]!r}")
    else:
        value = _boolean(parser, key)
    parser.set(host={**parser.config.host, key: value})


_MAX_REGISTER_THREADS = 128

_HOST_NUMBERS: dict[str, Callable[[int], bool]] = {
    "pinned_num_register_threads": lambda n: _is_power_of_two(n) and n <= _MAX_REGISTER_THREADS,
    "pinned_reserve_segment_size_mb": lambda n: n > 0,
    "pinned_max_round_threshold_mb": lambda n: n >= 0,
    "pinned_max_cached_size_mb": lambda n: n >= 0,
}

_READERS: dict[str, Callable[[_Parser, str], None]] = {
    "max_split_size_mb": _read_threshold_size,
    "max_non_split_rounding_mb": _read_threshold_size,
    "large_segment_size_mb": _read_large_segment_size,
    "garbage_collection_threshold": _read_gc_threshold,
    "backend": _read_backend,
    "expandable_segments": _read_flag,
    "throw_on_cudamalloc_oom": _read_flag,
    "graph_capture_record_stream_reuse": _read_flag,
    "per_process_memory_fraction": _read_fraction,
    "roundup_power2_divisions": _read_divisions,
    "expandable_segments_reserve": _read_reserve,
    "expandable_segments_reserve_by_class": _read_reserve_by_class,
}
