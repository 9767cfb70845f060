"""Parser of PYTORCH_CUDA_ALLOC_CONF, with the rules and error messages of each release.

- `, : [ ]` are tokens, everything else is a word.  Blanks are dropped everywhere (up to PyTorch 2.9
  only spaces).
- Up to PyTorch 2.9 a wrong separator is an error.  From 2.10 on any token may separate, and the
  option string (conf) is read twice: first for the options that all accelerators have, then for the
  options of CUDA.
- If PyTorch refuses a conf, the options before the bad one stay applied, and options that a new
  conf resets (config.py) stay reset.
- Only the leading digits of a number are read: "30.7" is 30.

Source: semantics 8.2, 8.3, 1.2 (lists), 4.8 and 12.5 (reserves); the rest was observed on the
compiled allocators of 2.1.2 to 2.15.0 (tests/core/test_option_string.py has the strings).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from allocsim.core.config import NO_DIVISIONS, AllocatorConfig
from allocsim.core.constants import MIN_LARGE_ALLOC, N_ROUNDUP_INTERVALS, UNLIMITED
from allocsim.core.options import OPTIONS
from allocsim.core.releases import Release
from allocsim.errors import ConfigError
from allocsim.units import MIB

MAX_LENGTH = 64 * 1024
"""Largest number of characters of an option string (conf); a longer one is refused unread."""

_WORD = re.compile(r"[,:\[\]]|[^,:\[\]]+")
_SPACES = str.maketrans("", "", " ")
_BLANKS = str.maketrans("", "", " \t\n\v\f\r")
_INTEGER = re.compile(r"[ \t\n\v\f\r]*([+-]?)0*(\d+)", re.ASCII)
_FLOAT = re.compile(
    r"[ \t\n\v\f\r]*([+-]?(?:0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)(?:[pP][+-]?\d+)?"
    r"|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?))",
    re.ASCII,
)
_RESERVE = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)([Gg]?)", re.ASCII)
_WIDEST = 20
"""Number of digits of 2**64 - 1."""
_INT_MAX = (1 << 31) - 1
_WORD_MAX = (1 << 64) - 1
_SIZE_MAX = _WORD_MAX // MIB
"""Maximum of a size in MiB, so that its bytes fit a 64-bit word."""
_SMALLEST_NORMAL = 2.2250738585072014e-308


class BadOptionError(ConfigError):
    def __init__(self, text: str, applied: AllocatorConfig | None = None) -> None:
        super().__init__(text)
        self.applied = applied


def parse(text: str, release: Release, previous: AllocatorConfig | None = None) -> AllocatorConfig:
    """Return the options that apply after a program sets the option string (conf) `text`.

    release: PyTorch release that reads it.
    previous: options that applied before; None for the defaults of a new process.
    Raises BadOptionError if the release refuses the conf.

    Mirrors: CUDAAllocatorConfig::parseArgs, AcceleratorAllocatorConfig::parseArgs
    """
    before = previous if previous is not None else AllocatorConfig(release)
    if len(text) > MAX_LENGTH:
        raise BadOptionError(
            f"the option string has {len(text)} characters; expected at most {MAX_LENGTH}",
            before,
        )
    dropped = _SPACES if release.separators_checked else _BLANKS
    parser = _Parser(_WORD.findall(text.translate(dropped)), release, replace(before, text=text))
    try:
        parser.parse()
    except BadOptionError as error:
        raise BadOptionError(str(error), parser.config) from None
    return parser.config


@dataclass(slots=True)
class _Parser:
    words: list[str]
    release: Release
    config: AllocatorConfig
    at: int = 0

    def parse(self) -> None:
        self._reset()
        if self.release.separators_checked:
            self._pass(self.release.options)
            return
        # Options of the second pass overwrite nothing of the first, but an error of the first pass
        # comes before all errors of the second.
        self._pass(_SHARED)
        self._pass(self.release.options - _SHARED)

    def _pass(self, mine: frozenset[str]) -> None:
        self.at = 0
        while self.at < len(self.words):
            key = self.words[self.at]
            self.at += 1
            if key not in self.release.options:
                raise BadOptionError(self._unknown(key))
            self.separator(":", key)
            if key in mine:
                _READERS[key](self, key)
            else:
                self._step_over(key)
            if self.at < len(self.words):
                self.separator(",", key)

    def _reset(self) -> None:
        self.set(
            max_split_size=UNLIMITED,
            roundup_power2_divisions=NO_DIVISIONS,
            garbage_collection_threshold=0.0,
        )
        if "large_segment_size_mb" in self.release.options:
            self._read_large_segment_size()
        if self.release.parse_resets_non_split_rounding:
            self.set(max_non_split_rounding=self.config.large_segment_size)

    def _read_large_segment_size(self) -> None:
        """Apply large_segment_size_mb before all other options, wherever it is in the conf."""
        for i, key in enumerate(self.words[:-2]):
            if key == "large_segment_size_mb":
                word = self.words[i + 2]
                size = min(self.integer(word, key), _SIZE_MAX)
                if size <= MIN_LARGE_ALLOC // MIB:
                    raise BadOptionError(
                        f"option {key} too small, must be > {MIN_LARGE_ALLOC // MIB}, "
                        f"got {word[:80]!r}"
                    )
                self.set(large_segment_size=size * MIB)

    def _step_over(self, key: str) -> None:
        # The value of an option of the other pass: a word or a list.
        if self.value(key) == "[":
            while self.value(key) != "]":
                pass

    def _take(self, expected: str) -> str:
        if self.at == len(self.words):
            raise BadOptionError(f"the option string ends where {expected} was expected")
        self.at += 1
        return self.words[self.at - 1]

    def _unknown(self, key: str) -> str:
        if self.release.old_error_words:
            return f"unrecognized option {key[:80]!r} in release {self.release.version}"
        return (
            f"unrecognized key {key[:80]!r} in Accelerator allocator config of release "
            f"{self.release.version}"
        )

    # -- used by the functions in _READERS -------------------------------------------------

    def separator(self, wanted: str, after: str) -> None:
        found = self._take(f"{wanted!r} after {after}")
        if self.release.separators_checked and found != wanted:
            raise BadOptionError(f"expected {wanted!r} after {after}, got {found[:80]!r}")

    def value(self, key: str) -> str:
        return self._take(f"a value of {key}")

    def set(self, **changes: Any) -> None:
        self.config = replace(self.config, **changes)

    def integer(self, word: str, key: str, *, is_64_bit: bool = False) -> int:
        """Return the number at the beginning of `word` modulo 2**64.

        is_64_bit: accept 64 bits in every version of PyTorch.  If False, the number must fit a C
            int up to PyTorch 2.9.
        """
        match = _INTEGER.match(word)
        most = _INT_MAX if self.release.separators_checked and not is_64_bit else _WORD_MAX
        if match is None or len(match[2]) > _WIDEST or int(match[2]) > most:
            raise BadOptionError(f"option {key} expects an integer, got {word[:80]!r}")
        return int(match[1] + match[2]) & _WORD_MAX


def _float(word: str, key: str) -> float:
    match = _FLOAT.match(word)
    if match is None:
        raise BadOptionError(f"option {key} expects a number, got {word[:80]!r}")
    digits = match[1]
    is_hex = "x" in digits.lower()
    number = float.fromhex(digits) if is_hex else float(digits)
    mantissa = re.split("[pP]" if is_hex else "[eE]", digits)[0].lower().replace("0x", "")
    # strtod reports ERANGE for a subnormal result, also if it rounds to 0.
    if abs(number) < _SMALLEST_NORMAL and mantissa.strip("+-0."):
        raise BadOptionError(f"option {key} expects a number of usual size, got {word[:80]!r}")
    return number


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
    """Read max_split_size_mb or max_non_split_rounding_mb.

    Raises BadOptionError for a value below large_segment_size_mb; some versions of PyTorch also
    refuse a value equal to it.
    """
    word = parser.value(key)
    size = min(parser.integer(word, key), _SIZE_MAX)
    # The minimum follows large_segment_size_mb of the same conf.
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
        raise BadOptionError(f"{key} cudaMallocAsync is not modelled; expected native")
    if word != "native":
        raise BadOptionError(f"unknown allocator {key} {word[:80]!r}, should be native")


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
        _read_division_list(parser, key)
        return
    divisions = parser.integer(word, key)
    if not _is_power_of_two(divisions):
        raise BadOptionError(_bad_divisions(parser.release, word))
    parser.set(roundup_power2_divisions=(divisions,) * N_ROUNDUP_INTERVALS)


def _bad_divisions(release: Release, word: str) -> str:
    zero = " or 0" if release.list_divisions_may_be_zero else ""
    return f"for roundups the divisions have to be a power of 2{zero}, got {word[:80]!r}"


def _read_division_list(parser: _Parser, key: str) -> None:
    """Read a roundup_power2_divisions list `[size:divisions,...,>:divisions]`, with sizes in MiB.

    The first pair also applies to smaller sizes, and `>` to all sizes after the last one.  Each
    pair applies as soon as it is read, on top of an earlier list (semantics.md, section 1.2).
    """
    last = 0
    is_first = True
    # Up to PyTorch 2.9 the conf may end inside a list, after the bracket or a comma.  From 2.10 on
    # the list must be closed; `value` raises at the end of the conf.
    while parser.at < len(parser.words) or not parser.release.separators_checked:
        name = parser.value(key)
        if name == "]":
            return
        divisions = list(parser.config.roundup_power2_divisions)
        parser.separator(":", name[:80])
        if name == ">":
            value = _division_value(parser, key)
            start = last if parser.release.list_tail_overwrites_last else last + 1
            divisions[start:] = [value] * (N_ROUNDUP_INTERVALS - start)
        else:
            last = _division_interval(parser, name)
            value = _division_value(parser, key)
            divisions[0 if is_first else last : last + 1] = [value] * (last + 1 if is_first else 1)
            is_first = False
        parser.set(roundup_power2_divisions=tuple(divisions))
        if parser.at == len(parser.words) or parser.words[parser.at] != "]":
            parser.separator(",", f"{name[:80]}:{value}")


def _division_interval(parser: _Parser, name: str) -> int:
    size = parser.integer(name, "roundup_power2_divisions", is_64_bit=True)
    if not _is_power_of_two(size):
        raise BadOptionError(
            f"the intervals have to be power of 2 and not negative, got {name[:80]!r}"
        )
    return min(size.bit_length() - 1, N_ROUNDUP_INTERVALS - 1)


def _division_value(parser: _Parser, key: str) -> int:
    word = parser.value(key)
    value = parser.integer(word, key)
    if not _is_power_of_two(value) and not (
        value == 0 and parser.release.list_divisions_may_be_zero
    ):
        raise BadOptionError(_bad_divisions(parser.release, word))
    return value


def _read_reserve(parser: _Parser, key: str) -> None:
    """Read expandable_segments_reserve; malformed values are ignored.

    Source: semantics 12.5.
    """
    match = _RESERVE.fullmatch(parser.value(key))
    if match is not None and float(match[1]) > 0:
        parser.set(expandable_segments_reserve=(float(match[1]), match[2].upper()))


def _read_reserve_by_class(parser: _Parser, key: str) -> None:
    """Parse and ignore `[class:reserve,...]`; only C++ gives streams a class.

    Source: semantics 4.8.
    """
    parser.value(key)
    while parser.value(key) != "]":
        parser.separator(":", key)
        parser.value(key)
        if parser.words[parser.at : parser.at + 1] == [","]:
            parser.at += 1


def _read_host(parser: _Parser, key: str) -> None:
    if key in _HOST_NUMBERS:
        word = parser.value(key)
        value: int | bool = parser.integer(word, key)
        if not _HOST_NUMBERS[key](value):
            raise BadOptionError(f"option {key} is out of range, got {word[:80]!r}")
    else:
        value = _boolean(parser, key)
    parser.set(host={**parser.config.host, key: value})


_MAX_REGISTER_THREADS = 128

_HOST_NUMBERS: dict[str, Callable[[int], bool]] = {
    "pinned_num_register_threads": lambda n: _is_power_of_two(n) and n <= _MAX_REGISTER_THREADS,
    "pinned_reserve_segment_size_mb": lambda n: n > 0,
    "pinned_max_round_threshold_mb": lambda _: True,
    "pinned_max_cached_size_mb": lambda _: True,
}

_SHARED = frozenset(option.name for option in OPTIONS.values() if option.is_shared)
"""Options that PyTorch 2.10 and later read in the first of two passes over an option string."""

_READERS: dict[str, Callable[[_Parser, str], None]] = {
    **{option.name: _read_host for option in OPTIONS.values() if option.field == "host"},
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
