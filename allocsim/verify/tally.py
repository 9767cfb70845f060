"""Count the ops of a cross-check by operation, feature, option, release, device and result.

Rule: only ops that ran are counted.  An op counts once for each option in effect, and once for each
feature of the allocator that it used, such as a malloc in an open pool.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from allocsim.verify.script import Op, Script

KINDS = ("operation", "feature", "option", "release", "device", "script")
_OPERATIONS = {
    "a": "malloc",
    "f": "free",
    "r": "record_stream",
    "s": "synchronize a stream",
    "S": "synchronize all",
    "e": "empty_cache",
    "m": "set_per_process_memory_fraction",
    "c": "set_allocator_settings",
    "k": "reset_peak_memory_stats",
    "K": "reset_accumulated_memory_stats",
    "q": "host_memory_stats",
}
_SCOPES = {
    "b": "begin_allocate_to_pool",
    "e": "end_allocate_to_pool",
    "r": "release_pool",
    "v": "empty_cache of a pool",
    "l": "delete a MemPool",
}
_LIST = re.compile(r"\[[^]]*\]")
_RESET_BY_A_PARSE = (
    "max_split_size_mb",
    "roundup_power2_divisions",
    "garbage_collection_threshold",
)


class Tally:
    """Counts of ops.

    counts: number of ops, or of scripts for "script", by (kind, name); kind is one of KINDS.
    ops: number of all ops.
    """

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self.ops = 0

    def __iadd__(self, other: Tally) -> Tally:
        self.counts += other.counts
        self.ops += other.ops
        return self

    def rows(self, kind: str) -> list[tuple[str, int]]:
        """Return (name, count) of every name of `kind`, largest count first."""
        rows = [(name, count) for (of, name), count in self.counts.items() if of == kind]
        return sorted(rows, key=lambda row: (-row[1], row[0]))

    def as_dict(self) -> dict[str, dict[str, int]]:
        """Return the counts by name of each kind."""
        return {kind: dict(self.rows(kind)) for kind in KINDS}

    def add(self, script: Script, release: str, addresses: Sequence[int | None], end: str) -> None:
        """Count the ops of a compared script.

        addresses: address of each allocation; None if it failed.
        end: reason for the end of the comparison, as text.
        """
        counts, ops = self.counts, script.ops
        self.ops += len(ops)
        counts["release", release] += len(ops)
        place = "pinned memory" if script.is_host else f"{script.address_policy} addresses"
        counts["device", place] += len(ops)
        counts["script", end] += 1
        for op in ops:
            name = _SCOPES[op[1]] if op[0] == "P" else _OPERATIONS[op[0]]
            counts["operation", name] += 1
        for name in _features(script, addresses):
            counts["feature", name] += 1
        for options in _options_in_force(script):
            for option in options or ("none",):
                counts["option", option] += 1


def _option_names(conf: str) -> set[str]:
    parts = (part.partition(":")[0].strip() for part in _LIST.sub("", conf).split(","))
    return {name for name in parts if name}


def _options_in_force(script: Script) -> Iterator[set[str]]:
    """Yield, for each op, the names of the options in effect."""
    options = _option_names(script.conf)
    for op in script.ops:
        if op[0] == "c":
            options = (options - {*_RESET_BY_A_PARSE}) | _option_names(op[1])
        yield options


def _features(script: Script, addresses: Sequence[int | None]) -> Iterator[str]:
    """Yield the name of each feature that an op used."""
    place = _Place(script.conf)
    answers = iter(addresses)
    for op in script.ops:
        if op[0] == "a":
            place.recorded.discard(op[1])
            if next(answers, None) is None and op[2]:
                yield "malloc out of memory"
            yield from place.of_malloc()
        elif op[0] == "f" and op[1] in place.recorded:
            yield f"free that may wait, {place.where()}"
        elif op[0] == "r":
            place.recorded.add(op[1])
            yield f"record_stream {place.where()}"
        elif op[0] == "e" and place.open_scopes > 0:
            yield "empty_cache in a scope"
        elif op[0] == "P":
            place.open_scopes += {"b": 1, "e": -1}.get(op[1], 0)
            yield from () if script.is_host else _marks(op)
        elif op[0] == "c":
            place.set(op[1])


class _Place:
    """State of a script at an op: open pools, settings, blocks with recorded streams."""

    def __init__(self, conf: str) -> None:
        self.open_scopes = 0
        self.recorded: set[object] = set()
        self.is_expandable = False
        self.set(conf)

    def set(self, conf: str) -> None:
        """Apply a conf set at run time; expandable_segments keeps its value if `conf` lacks it."""
        if "expandable_segments:" in conf:
            self.is_expandable = "expandable_segments:True" in conf

    def where(self) -> str:
        return "in a scope" if self.open_scopes > 0 else "outside scopes"

    def of_malloc(self) -> Iterator[str]:
        if self.is_expandable:
            yield f"malloc with expandable segments {self.where()}"
        if self.open_scopes > 0:
            yield "malloc in a scope" if self.open_scopes == 1 else "malloc in nested scopes"


def _marks(op: Op) -> Iterator[str]:
    marks = (*op[3:], 0, 0)[:2] if op[1] == "b" else (0, 0)
    if marks[0]:
        yield "pool marked no_split"
    if marks[1]:
        yield "pool marked use_on_oom"
