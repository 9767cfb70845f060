"""Op scripts: lists of allocator calls that the model and real PyTorch both run.

Results have the form of the golden cases, which are stored results of real PyTorch (tests/golden).

Ops are lists that begin with a letter:
    ["a", id, bytes, stream]     allocate              ["f", id]       free
    ["r", id, stream]            record_stream         ["e"]           empty_cache
    ["s", stream], ["S"]         the device completes the work of a stream, or all work
    ["m", fraction]              set_per_process_memory_fraction
    ["P", "b", pool], ["P", "b", pool, no_split, use_on_oom]    begin allocating to a pool
    ["P", "e", pool], ["P", "r", pool]                          end allocating to it; release it
    ["P", "v", pool], ["P", "l", pool]                          empty it; delete its MemPool
    ["c", conf]                  set_allocator_settings at run time
    ["k"], ["K"]                 reset peak statistics; reset accumulated statistics

A script of pinned host memory has these ops:
    ["a", id, bytes], ["f", id], ["e"], ["c", conf], ["k"], ["K"]    as above
    ["r", id, stream]            copy from the block without blocking
    ["s", stream], ["S"]         as above
    ["q"]                        read the statistics
    ["P", "b", pool, stream], ["P", "e", pool], ["P", "r", pool]
                                 begin a graph capture, end it, delete its graph

Rules: an id whose allocation failed is skipped when freed; stream n is an external stream, whose
raw handle is n * 4096 unless `Script.handles` gives another; pool n is the pool id (0, n).

The statistics and segments of the model and of real PyTorch are the same dictionaries, so both are
converted to the golden form by the same code.  Raw stream handles become stream numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from allocsim.errors import ScriptError

Op = Sequence[Any]
HANDLE = 4096
"""Default raw handle of stream 1; stream n has n * HANDLE."""
ADDRESS_POLICIES = ("bump", "firstfit")
_POOL_LETTERS = {"b": "b", "e": "x", "r": "d", "v": "v", "l": "l"}
"""Dictionary from the letter of a pool op in a script to its letter in the input of driver.cpp."""
_MAX_STREAM = 50_000  # keeps the stub's table of streams sparse
_MAX_BYTES = (1 << 64) - 1
_MAX_POOL = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Script:
    """Op script (list of allocator calls), with the conf and the device that it runs on.

    address_policy: placement of segments: "bump" (no address is reused) or "firstfit" (the lowest
        free range that is large enough).
    base_address: address of the first segment in the results; golden cases have 0.
    handles: dictionary from a stream number to its raw handle; other streams have number * 4096.
    is_host: True for a script of pinned host memory.  Its results have the number of
        a block, from 0 in the order of creation, in place of its address.
    """

    ops: Sequence[Op]
    device_memory: int
    conf: str = ""
    address_policy: str = "bump"
    base_address: int = 0
    handles: Mapping[int, int] = field(default_factory=dict)
    is_host: bool = False

    def stream_handles(self) -> dict[int, int]:
        """Return a dictionary from stream number to raw handle, for stream 0 and used streams."""
        letters = "rs" if self.is_host else "ars"
        numbers = {0} | {op[-1] for op in self.ops if op[0] in letters}
        if self.is_host:
            numbers |= {op[3] for op in self.ops if op[:2] == ["P", "b"]}
        return {n: self.handles.get(n, n * HANDLE) for n in sorted(numbers)}

    def with_ops(self, ops: Sequence[Op]) -> Script:
        return replace(self, ops=ops)


@dataclass(frozen=True, slots=True)
class RealAnswer:
    """Results of a script in one PyTorch release, in the form of golden cases (tests/golden).

    messages: texts of out-of-memory errors and driver refusals, in order.
    addresses: address for each `a` op in order; None if it failed, or for 0 bytes.
    stats: dictionary from the name of a statistic to [current, peak, allocated, freed], and from
        the name of a counter to one number.
    segments: final segments, as in torch.cuda.memory_snapshot() (`golden_segment`).
    trace: entries [action, address, bytes, stream number] of the history.
    stopped: (index of the op, error text) if an error of another kind ended the script, else None.
        The other fields then report the state at that point.
    conditions: stream handles, used memory and history of a real GPU, as keyword arguments of
        `player.play`.
    """

    torch: str
    addresses: list[int | None]
    stats: dict[str, Any]
    segments: list[dict[str, Any]]
    trace: list[list[Any]]
    messages: list[str]
    stopped: tuple[int, str] | None = None
    conditions: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class ModelAnswer:
    """Results of a script in the model, in the form of golden cases (tests/golden).

    The fields are those of `RealAnswer`, except that `stopped` is (index of the op, exception) if
    an error ended the script, else None.
    """

    addresses: list[int | None] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    stats: dict[str, Any] = field(default_factory=dict)
    segments: list[dict[str, Any]] = field(default_factory=list)
    trace: list[list[Any]] = field(default_factory=list)
    stopped: tuple[int, Exception] | None = None


class _Encoder:
    # Ids of blocks are replaced by numbers from 0.

    def __init__(self) -> None:
        self.ids: dict[Any, int] = {}
        self.at = 0

    def refuse(self, value: object, expected: str) -> ScriptError:
        return ScriptError(f"op {self.at}: {value!r} is not {expected}")

    def integer(self, value: object, most: int, expected: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
            raise self.refuse(value, expected)
        return value

    def stream(self, value: object) -> int:
        return self.integer(value, _MAX_STREAM, f"a stream number from 0 to {_MAX_STREAM}")

    def known(self, identity: object) -> int:
        if identity not in self.ids:
            raise self.refuse(identity, "an id that was allocated before")
        return self.ids[identity]

    def allocate(self, identity: object, size: object, stream: object) -> str:
        number = self.ids.setdefault(identity, len(self.ids))
        size = self.integer(size, _MAX_BYTES, "a size in bytes")
        return f"a {number} {size} {self.stream(stream)}"

    def free(self, identity: object) -> str:
        return f"f {self.known(identity)}"

    def record(self, identity: object, stream: object) -> str:
        return f"r {self.known(identity)} {self.stream(stream)}"

    def finish(self, stream: object) -> str:
        return f"s {self.stream(stream)}"

    def fraction(self, value: object) -> str:
        # Golden cases write fractions as text, so that no reader rounds them.
        try:
            number = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            raise self.refuse(value, "a memory fraction")
        return f"m {number!r}"

    def settings(self, conf: object) -> str:
        if not isinstance(conf, str) or "\n" in conf:
            raise self.refuse(conf, "an option string of one line")
        return f"c {conf}"

    def scope(
        self, what: object, pool: object, no_split: object = False, use_on_oom: object = False
    ) -> str:
        pool = self.integer(pool, _MAX_POOL, "a pool number")
        letter = _POOL_LETTERS.get(what) if isinstance(what, str) else None
        if letter is None:
            raise self.refuse(what, f"a pool op, one of {' '.join(_POOL_LETTERS)}")
        marks = f" {int(bool(no_split))} {int(bool(use_on_oom))}" if letter == "b" else ""
        return f"{letter} {pool}{marks}"

    def line(self, op: Op) -> str:
        writers: dict[str, Callable[..., str]] = {
            "a": self.allocate,
            "f": self.free,
            "r": self.record,
            "s": self.finish,
            "m": self.fraction,
            "c": self.settings,
            "P": self.scope,
        }
        plain = ("S", "e", "k", "K")
        letter = op[0] if op and isinstance(op[0], str) else ""
        if letter in plain and len(op) == 1:
            return letter
        writer = writers.get(letter)
        if writer is None:
            raise self.refuse(list(op), f"an op that begins with {' '.join([*writers, *plain])}")
        try:
            return writer(*op[1:])
        except TypeError:
            raise self.refuse(list(op), f"the {letter!r} op with its arguments") from None


def encode_ops(ops: Sequence[Op]) -> list[str]:
    """Convert ops to the lines of text that driver.cpp reads, one line per op."""
    encoder = _Encoder()
    lines = []
    for encoder.at, op in enumerate(ops):
        lines.append(encoder.line(op))
    return lines


_COLUMNS = ("current", "peak", "allocated", "freed")
_AS_THEY_ARE = (
    "address",
    "total_size",
    "requested_size",
    "allocated_size",
    "active_size",
    "is_expandable",
)
Numbers = Callable[[int], int]


def golden_stats(flat: Mapping[str, int]) -> dict[str, Any]:
    """Convert the result of torch.cuda.memory_stats() to the form of golden cases (tests/golden).

    It is a dictionary from a statistic to [current, peak, allocated, freed], and from a counter to
    a number.
    """
    names = [key.removesuffix(".current") for key in flat if key.endswith(".current")]
    grouped = {name: [flat[f"{name}.{column}"] for column in _COLUMNS] for name in names}
    return grouped | {key: flat[key] for key in flat if "." not in key}


def golden_segment(segment: Mapping[str, Any], number: Numbers) -> dict[str, Any]:
    """Convert a segment of torch.cuda.memory._snapshot() to the form of tests/golden.

    number: function from a raw stream handle to the number that names the stream in the script.
    """
    return {
        **{key: segment[key] for key in _AS_THEY_ARE},
        "stream": number(segment["stream"]),
        "is_large": segment["segment_type"] == "large",
        "pool": segment["segment_pool_id"][1],
        "blocks": [[b["size"], b["requested_size"], b["state"]] for b in segment["blocks"]],
    }


def stream_numbers(handles: Mapping[int, int]) -> Numbers:
    """Return a function from a raw stream handle to the stream's number in a script.

    handles: dictionary from a number to a raw handle.  For other handles, the function raises
        KeyError.
    """
    known = {handle: number for number, handle in handles.items()}
    return known.__getitem__
