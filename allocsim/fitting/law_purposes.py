"""Purposes of the requests of laws, found by the rules of `allocsim top`.

Rule: a purpose depends on stacks and lifetimes, which do not change with sizes. So it is found once
for each request of a law, at sizes where tensors of different purposes differ in size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from allocsim.fitting.laws import (
    AFTER,
    BETWEEN,
    END,
    FREE,
    MAKE,
    REQUEST,
    START,
    STEP,
    Card,
    Law,
    LawRows,
    Laws,
    Requests,
    Serving,
    requests_of,
    variables_of,
)
from allocsim.ownership import purposes_of

__all__ = ["purposes_of_laws"]

_SIZES = {
    "hidden": 2304, "intermediate": 6208, "heads": 18, "kv_heads": 6, "head_dim": 128,
    "vocabulary": 61_007, "positions": 2048, "batch": 3, "length": 777, "lora": 8, "patch": 14,
}  # fmt: skip
_REPETITION = 2
"""Repetition of a program part whose purposes are used: it follows another of the same law."""
_CARD = Card((8, 0), 108, 2048)
_SERVED = Serving(_SIZES, _CARD, is_fused=True, decode=1, requests=1)


def purposes_of_laws(laws: Laws) -> dict[str, NDArray[np.int64]]:
    """Return the purpose of each request of each law, as an index into `CATEGORIES`, by regime."""
    if any(name.startswith(f"{MAKE}.") for name in laws.by_regime):
        return _of_serving(laws)
    variables = variables_of(_SIZES, _CARD)
    return {
        regime: _purposes(laws, law.requests(variables, law.layers))
        for regime, law in laws.by_regime.items()
    }


def _purposes(laws: Laws, made: Requests) -> NDArray[np.int64]:
    n = len(made.kind)
    requests, frees = np.flatnonzero(made.kind == REQUEST), np.flatnonzero(made.kind == FREE)
    freed = np.full(len(requests), n)
    freed[made.block[frees]] = frees
    return purposes_of(laws.stacks, made.stack[requests], made.size[requests], (requests, freed), n)


def _of_serving(laws: Laws) -> dict[str, NDArray[np.int64]]:
    """Return the purposes of the requests of a serving program, by part and regime."""
    found: dict[str, NDArray[np.int64]] = {}
    for names in _programs(laws.by_regime):
        stretches = _stretches(laws.by_regime, names)
        layers = laws.by_regime[names[0]].layers
        made = requests_of(stretches, names, 0, layers)
        purposes, counts, at = _purposes(laws, made), dict[str, int](), 0
        for name, rows in zip(names, stretches, strict=True):
            count = int((rows.kind == REQUEST).sum())
            counts[name] = counts.get(name, 0) + 1
            # The first repetition is overwritten by the second, which follows one of its kind.
            if counts[name] <= _REPETITION:
                found[name] = purposes[at : at + count]
            at += count
    return found


def _programs(known: Mapping[str, Law]) -> Iterator[Sequence[str]]:
    """Yield programs of two requests with three tokens each, which together use every law."""
    regimes = {kind: _regimes(known, kind) for kind in (MAKE, START, STEP)}
    most = max(map(len, regimes.values()))
    for i in range(most):
        make, start, step = (of[i % len(of)] for of in regimes.values())
        tokens = [f"{STEP}.{step}", f"{AFTER}.{step}"] * 3
        del tokens[-1]
        yield [
            *(f"{MAKE}.{make}", f"{START}.{start}", *tokens),
            *(f"{BETWEEN}.{start}", *tokens, f"{END}.{make}"),
        ]


def _regimes(known: Mapping[str, Law], kind: str) -> list[str]:
    return [name.partition(".")[2] for name in known if name.startswith(f"{kind}.")]


def _stretches(known: Mapping[str, Law], names: Sequence[str]) -> list[LawRows]:
    """Return the rows of each law in `names`; the cache grows by one token with every step."""
    found, length = [], _SIZES["length"]
    for name in names:
        kind = name.partition(".")[0]
        length = _SIZES["length"] if kind in (START, BETWEEN) else length + (kind == STEP)
        found.append(known[name].rows(_SERVED.variables((name, length)), known[name].layers))
    return found
