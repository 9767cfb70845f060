"""Changes of a program that need less memory at a given entry, and how much memory each saves.

Rule: an estimate is a range, computed from the categories of the memory in use at the entry.  A
change is proved only if a replay of the edited program serves every request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from allocsim.editing.devices import try_edits
from allocsim.ownership import Phase, held_at, scene_of_run
from allocsim.replaying import Prepared
from allocsim.simulation import DeviceRun

_CHECKPOINTED = (0.6, 0.85)
"""Shares of the kept activations that checkpointing every layer saves.

61 to 84 % in six of the models with laws (tests/editing/test_savings.py).
"""
_EIGHT_BITS = (0.48, 0.74)
"""Shares of the state of 16 and of 32 bits that a state of 8 bits with its scales saves."""
_ADAPTED = (0.9, 1.0)
"""Shares of gradients and optimizer state that LoRA adapters of usual ranks save."""
_QUANTISED = (0.45, 0.75)
"""Shares of 16-bit weights that 8 and 4 bits for the linear layers save."""
_LEAST_SHARE = 0.05
_MOST = 4


@dataclass(frozen=True, slots=True)
class Saving:
    """Change of a program and the memory that it saves.

    low_bytes, high_bytes: estimated range of the saving; None if a replay proved the change.
    is_enough: True if the failed request succeeds even with the low end; None if unknown.
    """

    change: str
    low_bytes: int | None
    high_bytes: int | None
    is_enough: bool | None

    @property
    def is_proved(self) -> bool:
        return self.low_bytes is None


def savings_at(
    prepared: Prepared, device_run: DeviceRun, entry: int, missing: int
) -> tuple[Saving, ...]:
    """Return changes with which the request that failed at `entry` may succeed, proved ones first.

    device_run: baseline replay of the device.
    missing: bytes that the request lacks.
    """
    scene = scene_of_run(prepared.trace, prepared.start, device_run.timeline)
    held = held_at(scene, prepared.trace, entry)
    categories: Counter[str] = Counter()
    for index, size in enumerate(held.sizes):
        categories[held.category(index)] += size
    estimates = savings_of(categories, scene.phase_at(entry).text, missing)
    return (*_proved(prepared), *estimates)


def savings_of(
    categories: Mapping[str, int], phase: str, missing: int | None = None
) -> tuple[Saving, ...]:
    """Return the changes that reduce memory of these categories, least change to training first.

    categories: bytes in use by category, as in `allocsim.ownership.CATEGORIES`.
    phase: training phase at which memory is needed, such as "optimizer"; "" if unknown.
    missing: bytes that the failed request lacks; None if unknown.
    """
    least = _LEAST_SHARE * sum(categories.values())
    found = [
        Saving(change, int(low), int(high), None if missing is None else low >= missing)
        for change, low, high in _changes(categories, phase)
        if high >= least
    ]
    return tuple(found[:_MOST])


def _changes(categories: Mapping[str, int], phase: str) -> Iterator[tuple[str, float, float]]:
    kept, temporary = (
        categories.get(name, 0) for name in ("activations kept for backward", "temporaries")
    )
    state, gradients = (categories.get(name, 0) for name in ("optimizer state", "gradients"))
    if phase == Phase.OPTIMIZER.text:
        yield "optimizer with fused=True", 0.9 * temporary, temporary
    yield "checkpoint the activations of every layer", *_shares(kept, _CHECKPOINTED)
    yield "half the batch, accumulated twice", kept / 2, 0.52 * (kept + temporary)
    yield "optimizer state in 8 bits", *_shares(state, _EIGHT_BITS)
    if state:
        yield "train LoRA adapters alone", *_shares(state + gradients, _ADAPTED)
    else:
        caches = categories.get("caches", 0)
        yield "half the sequences or tokens in the caches", caches / 2, caches / 2
        yield "weights in 8 or 4 bits", *_shares(categories.get("parameters", 0), _QUANTISED)


def _shares(size: int, shares: tuple[float, float]) -> tuple[float, float]:
    return shares[0] * size, shares[1] * size


def _proved(prepared: Prepared) -> Iterator[Saving]:
    # Another order of the steps is left out: it fits only because the optimizer has no state yet.
    for trial in try_edits([prepared]):
        edit = trial.devices[0].edits[0]
        if trial.is_whole and edit.text != "largest step first":
            yield Saving(edit.code, None, None, is_enough=True)
