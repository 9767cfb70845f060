"""Generate op scripts for measurements of speed, from a seed.

An op is an allocation ("a", id, bytes, stream) or a free ("f", id, 0, 0).  Sizes are drawn from a
small set, since the sizes of a network's layers recur.
"""

from __future__ import annotations

import random
from collections.abc import Callable

__all__ = ["SCRIPTS", "Op"]

Op = tuple[str, int, int, int]

KIB, MIB = 1 << 10, 1 << 20


def few_live(n_ops: int, seed: int = 1) -> list[Op]:
    """Return a script with about 300 live blocks of all sizes, like a forward pass."""
    return _churn(n_ops, n_live=300, seed=seed)


def many_live(n_ops: int, seed: int = 2) -> list[Op]:
    """Return a script with about 40,000 live blocks, like a server's cache."""
    return _churn(n_ops, n_live=40_000, seed=seed)


def training_loop(n_ops: int, seed: int = 3) -> list[Op]:
    """Return training steps: activations allocated forward, gradients freed backward."""
    rng = random.Random(seed)
    layers = [rng.choice((24 * KIB, 768 * KIB, 3 * MIB, 12 * MIB, 37 * MIB)) for _ in range(96)]
    ops: list[Op] = []
    name = 0
    for size in layers:  # parameters and two optimizer states, never freed
        for _ in range(3):
            ops.append(("a", name, size, 0))
            name += 1
    while len(ops) < n_ops:
        scale = rng.uniform(0.5, 1.5)
        kept = []
        for size in layers:
            activation, scratch = int(size * scale) + 1, int(size * scale / 3) + 1
            ops += [("a", name, activation, 0), ("a", name + 1, scratch, 0), ("f", name + 1, 0, 0)]
            kept.append((name, activation))
            name += 2
        for activation, size in reversed(kept):
            ops += [("a", name, size, 0), ("a", name + 1, 4 * KIB, 0)]
            ops += [("f", freed, 0, 0) for freed in (activation, name, name + 1)]
            name += 2
    return ops[:n_ops]


def growing(n_ops: int, seed: int = 4) -> list[Op]:
    """Return random operations of random sizes, with more allocations than frees."""
    rng = random.Random(seed)
    ops: list[Op] = []
    live: list[int] = []
    for name in range(n_ops):
        if not live or rng.random() < 0.55:
            ops.append(("a", name, int(2 ** rng.uniform(9, 22)), 0))
            live.append(name)
        else:
            i = rng.randrange(len(live))
            live[i], live[-1] = live[-1], live[i]
            ops.append(("f", live.pop(), 0, 0))
    return ops


def _churn(n_ops: int, *, n_live: int, seed: int) -> list[Op]:
    rng = random.Random(seed)
    palette = [int(2 ** rng.uniform(5, 20)) for _ in range(150)]
    palette += [int(2 ** rng.uniform(20, 24)) for _ in range(50)]
    ops: list[Op] = []
    live: list[int] = []
    name = 0
    while len(ops) < n_ops:
        if len(live) < n_live or rng.random() < 0.5:
            ops.append(("a", name, rng.choice(palette), 0))
            live.append(name)
            name += 1
        else:
            i = rng.randrange(len(live))
            live[i], live[-1] = live[-1], live[i]
            ops.append(("f", live.pop(), 0, 0))
    return ops


SCRIPTS: dict[str, Callable[[int], list[Op]]] = {
    "few live blocks": few_live,
    "40,000 live blocks": many_live,
    "training loop": training_loop,
}
