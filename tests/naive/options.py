"""The option string as each release reads it (semantics 8).

Every parse first resets three options (four since 2.11); the others keep their values.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from allocsim.errors import ConfigError
from allocsim.units import GIB, MIB

__all__ = ["NEWEST", "Options"]

NEWEST = 15
"""Minor number of the last release implemented here."""

SINCE = {
    "max_split_size_mb": 1,
    "roundup_power2_divisions": 1,
    "garbage_collection_threshold": 1,
    "backend": 1,
    "expandable_segments": 1,
    "release_lock_on_cudamalloc": 2,
    "pinned_use_cuda_host_register": 2,
    "pinned_num_register_threads": 2,
    "max_non_split_rounding_mb": 6,
    "pinned_use_background_threads": 6,
    "graph_capture_record_stream_reuse": 9,
    "per_process_memory_fraction": 10,
    "pinned_reserve_segment_size_mb": 10,
    "large_segment_size_mb": 11,
    "throw_on_cudamalloc_oom": 12,
    "pinned_free_catch_all": 12,
    "pinned_max_round_threshold_mb": 13,
    "pinned_max_cached_size_mb": 13,
    "expandable_segments_reserve": 15,
    "expandable_segments_reserve_by_class": 15,
}
SHARED = {
    "max_split_size_mb",
    "max_non_split_rounding_mb",
    "large_segment_size_mb",
    "garbage_collection_threshold",
    "roundup_power2_divisions",
    "expandable_segments",
    "pinned_use_background_threads",
    "pinned_max_round_threshold_mb",
    "pinned_max_cached_size_mb",
}
SWITCHES = {
    "expandable_segments",
    "release_lock_on_cudamalloc",
    "pinned_use_cuda_host_register",
    "pinned_use_background_threads",
    "graph_capture_record_stream_reuse",
    "throw_on_cudamalloc_oom",
    "pinned_free_catch_all",
}


def is_power_of_two(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0


@dataclass(slots=True)
class Options:
    """Option values in release 2.`minor`; None stands for "unlimited" or "unset"."""

    minor: int
    text: str = ""
    max_split_size: int | None = None
    divisions: list[int] = field(default_factory=lambda: [0] * 16)
    gc_threshold: float = 0.0
    max_non_split_rounding: int = 20 * MIB
    large_segment: int = 20 * MIB
    fraction: float = 1.0
    reserve: tuple[str, float] | None = None  # ("G", bytes) or ("", fraction of total)
    registration_threads: int = 1
    pinned: dict[str, int] = field(default_factory=dict)  # bytes; absent: unlimited
    switches: dict[str, bool] = field(default_factory=lambda: dict.fromkeys(SWITCHES, False))

    @property
    def expandable(self) -> bool:
        return self.switches["expandable_segments"]

    def parse(self, text: str) -> None:
        """Apply `text`; raise ConfigError if the release refuses it.

        Options before a bad one stay applied in every release (observed).
        """
        self.text = text
        self.max_split_size = None
        self.divisions = [0] * 16
        self.gc_threshold = 0.0
        blanks = r"\s+" if self.minor >= 10 else " +"
        tokens = [t for t in re.split(r"([,:\[\]])", re.sub(blanks, "", text)) if t]
        if self.minor >= 11:
            if "large_segment_size_mb" in tokens:
                at = tokens.index("large_segment_size_mb")
                self._apply("large_segment_size_mb", tokens[at + 2 : at + 3])
            self.max_non_split_rounding = self.large_segment
        passes = [set(SINCE)] if self.minor < 10 else [SHARED, set(SINCE) - SHARED]
        for mine in passes:
            left = tokens
            while left:
                left = self._group(left, mine)

    def _group(self, tokens: list[str], mine: set[str]) -> list[str]:
        """Read one `key:value` and the comma behind it; return the rest.

        Keys that are not `mine` are skipped: from 2.10 on, options that all accelerators share are
        read before those of CUDA (observed).
        """
        key = tokens[0]
        if self.minor < SINCE.get(key, 99):
            raise ConfigError(f"option {key!r} is not known to PyTorch 2.{self.minor}")
        if len(tokens) < 3 or (self.minor < 10 and tokens[1] != ":"):
            raise ConfigError(f"option {key!r} has no value; expected {key}:value")
        length = 1
        if tokens[2] == "[":
            if "]" not in tokens:
                raise ConfigError(f"the list of option {key!r} is not closed with ']'")
            length = tokens.index("]") - 1
        if key in mine:
            self._apply(key, tokens[2 : 2 + length])
        rest = tokens[2 + length :]
        if rest and self.minor < 10 and rest[0] != ",":
            raise ConfigError(f"option {key!r} is followed by {rest[0]!r}; expected ','")
        return rest[1:]

    def _apply(self, key: str, value: list[str]) -> None:
        if key in SWITCHES:
            if value not in (["True"], ["False"]):
                raise ConfigError(f"option {key} is {''.join(value)!r}; expected True or False")
            self.switches[key] = value == ["True"]
        elif key == "roundup_power2_divisions":
            self._divide(value)
        elif key == "garbage_collection_threshold":
            self.gc_threshold = number(key, value)
            if not 0.0 < self.gc_threshold < 1.0:
                raise ConfigError(f"option {key} is {value[0]}; expected a value in (0.0, 1.0)")
        elif key == "per_process_memory_fraction":
            self.fraction = number(key, value)
            if not 0.0 <= self.fraction <= 1.0:
                raise ConfigError(f"option {key} is {value[0]}; expected a value in [0, 1]")
        elif key == "expandable_segments_reserve":
            self._reserve(value)
        elif key == "backend":
            if value != ["native"]:
                raise ConfigError(f"backend {''.join(value)!r} is not modelled; expected native")
        elif key != "expandable_segments_reserve_by_class":
            self._count(key, value)

    def _count(self, key: str, value: list[str]) -> None:
        """Read an option that is a whole number, mostly of MiB."""
        count = whole(key, value)
        least = {"max_split_size_mb": 21, "max_non_split_rounding_mb": 21}.get(key, 0)
        if least and self.minor >= 10:
            least = self.large_segment // MIB if self.minor >= 11 else 20
        if key == "large_segment_size_mb":
            least = 11
        if count < least:
            raise ConfigError(f"option {key} is {count}; expected {least} or more")
        if key == "max_split_size_mb":
            self.max_split_size = count * MIB
        elif key == "max_non_split_rounding_mb":
            self.max_non_split_rounding = count * MIB
        elif key == "large_segment_size_mb":
            self.large_segment = count * MIB
        elif key.startswith("pinned_max_"):
            self.pinned[key.removeprefix("pinned_").removesuffix("_mb")] = count * MIB
        elif key == "pinned_num_register_threads":
            if not is_power_of_two(count) or count > 128:
                raise ConfigError(f"option {key} is {count}; expected a power of two to 128")
            self.registration_threads = count

    def _divide(self, value: list[str]) -> None:
        """Read one number or a list of divisions over the 16 intervals (semantics 1.2)."""
        key = "roundup_power2_divisions"
        if value[0] != "[":
            divisions = whole(key, value)
            if not is_power_of_two(divisions):
                raise ConfigError(f"option {key} is {divisions}; expected a power of two")
            self.divisions = [divisions] * 16
            return
        last, first = 0, True
        for pair in "".join(value[1:-1]).split(","):
            interval, _, text = pair.partition(":")
            divisions = whole(key, [text])
            if not is_power_of_two(divisions) and not (divisions == 0 and self.minor >= 4):
                raise ConfigError(f"option {key} has {pair!r}; expected a power of two")
            if interval == ">":
                start = last + 1 if self.minor >= 10 else last
                self.divisions[start:] = [divisions] * (16 - start)
                continue
            size = whole(key, [interval])
            if not is_power_of_two(size):
                raise ConfigError(f"option {key} has {pair!r}; expected a power of two")
            last = min(size.bit_length() - 1, 15)
            if first:
                self.divisions[: last + 1] = [divisions] * (last + 1)
                first = False
            self.divisions[last] = divisions

    def _reserve(self, value: list[str]) -> None:
        """Read a fraction of the total or GiB; ignore anything else (semantics 12.5)."""
        match = re.fullmatch(r"\+?(\d*\.?\d+(?:[eE][+-]?\d+)?|\d+\.)([gG]?)", "".join(value))
        if match and float(match[1]) > 0.0:
            unit = match[2].upper()
            self.reserve = (unit, float(match[1]) * (GIB if unit else 1))

    def reserve_limit(self, total: int) -> int:
        """Return the address space of an expandable segment in bytes, not yet rounded."""
        most = total + total // 8
        if self.reserve is None:
            return most
        unit, amount = self.reserve
        return min(int(amount if unit else amount * total), most)

    def divisions_for(self, size: int) -> int:
        return self.divisions[min(max(size.bit_length() - 1 - 20, 0), 15)]


def number(key: str, value: list[str]) -> float:
    """Return the number at the beginning of a text, as C++ does."""
    match = re.match(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", value[0] if value else "")
    if not match:
        raise ConfigError(f"option {key} is {''.join(value)!r}; expected a number")
    return float(match[0])


def whole(key: str, value: list[str]) -> int:
    """Return the whole number at the beginning of a text: 30 for "30.7" and "30x"."""
    match = re.match(r"[+-]?\d+", value[0] if value else "")
    if not match:
        raise ConfigError(f"option {key} is {''.join(value)!r}; expected a whole number")
    return int(match[0])
