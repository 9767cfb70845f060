"""Compare the requests of attention and convolutions on a real GPU and on the phantom GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from benchmarks.real_gpu.tables import signed_percent, table

__all__ = ["families", "kernel_lines"]

Requests = Sequence[int] | None
Shape = Mapping[str, Any]
_LONGEST = 100
"""Letters of an error that are shown."""


@dataclass(slots=True)
class Family:
    """Calls of one kind.

    calls: number of calls.
    exact: number of calls with the same requests on the real and the phantom GPU.
    failed: number of calls that failed on the phantom GPU.
    errors: error of each call's peak in per cent, with its sign.
    example: first shape whose requests differ, with the requests on both GPUs.
    """

    name: str
    calls: int = 0
    exact: int = 0
    failed: int = 0
    errors: list[float] = field(default_factory=list)
    example: str = ""

    def add(self, shape: str, real: Sequence[int], predicted: Requests, error: str | None) -> None:
        """Count one call.

        shape: description of its sizes.
        real, predicted: requests on the real and the phantom GPU.
        error: error message on the phantom GPU; None if it did not fail.
        """
        self.calls += 1
        if predicted is None:
            self.failed += 1
            self.example = self.example or f"{shape}: {(error or 'no requests')[:_LONGEST]}"
            return
        self.exact += list(predicted) == list(real)
        peak = _peak(real)
        if peak:
            self.errors.append(signed_percent(peak, _peak(predicted)))
        if list(predicted) != list(real) and not self.example:
            self.example = f"{shape}: {_listed(real)} on the card, {_listed(predicted)} predicted"

    def cells(self) -> tuple[str, ...]:
        """Return the cells of a table row."""
        worst = f"{max(self.errors, key=abs):+.2f} %" if any(self.errors) else "0"
        return (
            self.name,
            f"{self.exact} of {self.calls}",
            str(self.failed) if self.failed else "",
            worst if self.errors else "-",
            self.example,
        )


def families(real: Mapping[str, Any], predicted: Mapping[str, Any]) -> list[Family]:
    """Return the families in order of name.

    real: contents of `kernels.json`.
    predicted: result of `predictions.kernels_of`.
    """
    found: dict[str, Family] = {}
    for kind in ("attention", "conv"):
        pairs = zip(real[kind], predicted.get(kind, ()), strict=False)
        for row, (forward, backward, error) in pairs:
            for way, requests in (("forward", forward), ("backward", backward)):
                if row[way] is not None:
                    name = f"{_family(kind, row)}, {_way(row, way)}"
                    family = found.setdefault(name, Family(name))
                    family.add(_shape(kind, row), row[way], requests, error)
    return [found[name] for name in sorted(found)]


def _family(kind: str, row: Shape) -> str:
    dtype = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}[row["dtype"]]
    if kind == "attention":
        return f"attention, {dtype}{', mask' * bool(row['mask'])}"
    layout = "channels-last" if row["channels_last"] else "NCHW"
    if row["groups"] > 1:
        size = "depthwise"
    elif row["k"] == 1:
        size = "1x1" if row["stride"] == 1 else "1x1 with stride"
    else:
        size = f"{row['k']}x{row['k']}"
    return f"convolution {size}, {dtype}, {layout}"


def _way(row: Shape, way: str) -> str:
    if "train" in row and way == "forward":
        return "forward with gradients" if row["train"] else "forward only"
    return way


def _shape(kind: str, row: Shape) -> str:
    names = ("b", "h", "s", "t", "d") if kind == "attention" else ("n", "ci", "hw", "co", "stride")
    return " ".join(f"{name}={row[name]}" for name in names)


def _peak(requests: Sequence[int]) -> int:
    return max(accumulate(requests), default=0)


def _listed(requests: Sequence[int]) -> str:
    shown = ", ".join(f"{each}" for each in requests[:8])
    return f"[{shown}{', ...' * (len(requests) > 8)}]"


def kernel_lines(real: Mapping[str, Any], predicted: Mapping[str, Any]) -> list[str]:
    """Return the lines of the table and its summary in Markdown."""
    found = families(real, predicted)
    lines = list(_summaries(found))
    head = ("family", "calls exact", "failed", "worst error of a peak", "first difference")
    return [*lines, *table(head, (each.cells() for each in found))]


def _summaries(found: Sequence[Family]) -> Iterator[str]:
    for kind in ("attention", "convolution"):
        of_kind = [each for each in found if each.name.startswith(kind)]
        exact, calls = sum(each.exact for each in of_kind), sum(each.calls for each in of_kind)
        yield f"**{kind}: {exact} of {calls} calls have exactly the card's requests.**"
        yield ""
