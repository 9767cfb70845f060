"""Drive an allocator through a case and compare its results with the real ones.

Stream n of a case is the raw handle n * 4096 for the allocator, and n in the comparison.  Only the
op with the first difference is reported, not its consequences.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from allocsim.errors import AllocsimError, OutOfMemoryError
from tests.golden.cases import Case, Result

__all__ = ["Allocator", "Factory", "compare", "run"]

HANDLE = 4096
METRICS = ("current", "peak", "allocated", "freed")
# Statistics of some releases that the golden results did not record.
UNRECORDED = ("num_oom_rejections", "reserved_bytes_by_private_pools.")


class Allocator(Protocol):
    """Public interface that the core and the naive model share."""

    def malloc(self, size: int, stream: int = 0) -> int | None: ...
    def free(self, address: int | None, /) -> None: ...
    def record_stream(self, address: int, stream: int, /) -> None: ...
    def synchronize(self, stream: int | None = None) -> None: ...
    def empty_cache(self, pool: int | None = None) -> None: ...
    def set_per_process_memory_fraction(self, fraction: float) -> None: ...
    def set_allocator_settings(self, conf: str) -> None: ...
    def reset_peak_memory_stats(self) -> None: ...
    def reset_accumulated_memory_stats(self) -> None: ...
    def begin_allocate_to_pool(
        self, pool: int, *, no_split: bool = False, use_on_oom: bool = False
    ) -> None: ...
    def end_allocate_to_pool(self, pool: int) -> None: ...
    def release_pool(self, pool: int) -> None: ...
    def delete_mempool(self, pool: int) -> None: ...
    def memory_stats(self) -> dict[str, int]: ...
    def snapshot(self) -> dict[str, Any]: ...


Factory = Callable[..., Allocator]


class Script:
    """Ops of a case on one allocator.

    addresses, texts: results of the ops so far.
    """

    def __init__(self, allocator: Allocator) -> None:
        self._allocator = allocator
        self._live: dict[int, int] = {}
        self.addresses: list[int | None] = []
        self.texts: list[str] = []

    def play(self, op: list[Any]) -> None:
        """Run one op; skip an id whose allocation failed."""
        a, (word, *rest) = self._allocator, op
        if word == "a":
            self._allocate(*rest)
        elif word == "f":
            if rest[0] in self._live:
                a.free(self._live.pop(rest[0]))
        elif word == "r":
            if rest[0] in self._live:
                a.record_stream(self._live[rest[0]], rest[1] * HANDLE)
        elif word == "s":
            a.synchronize(rest[0] * HANDLE)
        elif word == "S":
            a.synchronize()
        elif word == "e":
            a.empty_cache()
        elif word == "m":
            a.set_per_process_memory_fraction(float(rest[0]))
        else:
            scope = {
                "b": a.begin_allocate_to_pool,
                "e": a.end_allocate_to_pool,
                "r": a.release_pool,
            }
            scope[rest[0]](rest[1])

    def _allocate(self, name: int, size: int, stream: int) -> None:
        try:
            address = self._allocator.malloc(size, stream * HANDLE)
        except OutOfMemoryError as error:
            self.addresses.append(None)
            self.texts.append(str(error))
            return
        assert address is not None
        self._live[name] = address
        self.addresses.append(address)


def run(case: Case, release: str, make: Factory) -> tuple[Script, Allocator, str | None]:
    """Play the script; return it, the allocator, and the error that stopped it, if any."""
    try:
        allocator = make(
            device_memory=case["device_memory"],
            conf=case["conf"],
            torch_version=release,
            address_policy=case["address_policy"],
            record_history=True,
        )
    except AllocsimError as error:
        raise ValueError(f"{case['name']} on {release}: {error}") from error
    script = Script(allocator)
    for index, op in enumerate(case["ops"]):
        try:
            script.play(op)
        except (AllocsimError, ValueError) as error:
            return script, allocator, f"op {index} {op}: {type(error).__name__}: {error}"
    return script, allocator, None


def compare(case: Case, release: str, result: Result, make: Factory) -> list[str]:
    """Return one sentence for each part that differs from the result of `release`."""
    try:
        script, allocator, stopped = run(case, release, make)
    except ValueError as error:
        return [str(error)]
    if stopped is not None:
        return [stopped]
    found = compare_addresses(case["ops"], result["addresses"], script.addresses)
    found += compare_stats(result["stats"], allocator.memory_stats())
    allocator.snapshot()  # its entry is in the next snapshot, as in the harness
    snapshot = allocator.snapshot()
    trace = [trace_row(entry) for entry in snapshot["device_traces"][0]]
    found += first_difference("trace entry", result["trace"], trace)
    segments = [segment_row(segment) for segment in snapshot["segments"]]
    found += first_difference("segment", result["segments"], segments)
    texts = next(m["texts"] for m in result["messages"] if release in m["torch"])
    return found + first_difference("message", texts, script.texts[:20])


def compare_addresses(
    ops: list[Any], expected: list[int | None], got: list[int | None]
) -> list[str]:
    allocations = [(index, op) for index, op in enumerate(ops) if op[0] == "a"]
    for (index, op), want, have in zip(allocations, expected, got, strict=True):
        if want != have:
            return [f"op {index} {op}: expected {spell(want)}, got {spell(have)}"]
    return []


def spell(address: int | None) -> str:
    return "out of memory" if address is None else f"address {address}"


def compare_stats(expected: dict[str, Any], got: dict[str, int]) -> list[str]:
    """Compare every recorded statistic; the model must have no others."""
    wanted: dict[str, int] = {}
    for key, value in expected.items():
        if isinstance(value, list):
            wanted.update({f"{key}.{m}": v for m, v in zip(METRICS, value, strict=True)})
        else:
            wanted[key] = value
    found = [
        f"statistic {key}: expected {value}, got {got.get(key)}"
        for key, value in wanted.items()
        if got.get(key) != value
    ]
    extra = [k for k in got if k not in wanted and not k.startswith(UNRECORDED)]
    return found + [f"statistic {key}: the release has none of that name" for key in extra]


def trace_row(entry: dict[str, Any]) -> list[Any]:
    """Return [action, address or free bytes, size, stream] as in the golden results."""
    place = entry["device_free"] if entry["action"] == "oom" else entry["addr"]
    return [entry["action"], place, entry["size"], entry["stream"] // HANDLE]


def segment_row(segment: dict[str, Any]) -> dict[str, Any]:
    """Return a segment as in the golden results."""
    keys = ("address", "total_size", "requested_size", "allocated_size", "active_size")
    return {
        **{key: segment[key] for key in keys},
        "stream": segment["stream"] // HANDLE,
        "is_large": segment["segment_type"] == "large",
        "is_expandable": segment["is_expandable"],
        "pool": segment["segment_pool_id"][1],
        "blocks": [[b["size"], b["requested_size"], b["state"]] for b in segment["blocks"]],
    }


def first_difference(noun: str, expected: list[Any], got: list[Any]) -> list[str]:
    """Return the first index where two lists differ, or where the shorter one ends."""
    for index, (want, have) in enumerate(zip(expected, got, strict=False)):
        if want != have:
            return [f"{noun} {index}: expected {brief(want, have)}, got {brief(have, want)}"]
    if len(expected) != len(got):
        return [f"{noun}s: expected {len(expected)}, got {len(got)}"]
    return []


def brief(value: Any, other: Any) -> str:
    """Return `value`; of a dictionary, only the entries that differ from `other`."""
    if not isinstance(value, dict) or not isinstance(other, dict):
        return str(value)
    differing = {k: v for k, v in value.items() if other.get(k) != v}
    if "blocks" in differing and len(differing["blocks"]) == len(other["blocks"]):
        pairs = enumerate(zip(value["blocks"], other["blocks"], strict=True))
        index, block = next((i, mine) for i, (mine, its) in pairs if mine != its)
        differing["blocks"] = f"block {index} is {block}"
    return f"{differing} at {value['address']}"
