"""The fewest cards that a training needs, and what more cards save.

Rule: every layout in the stated space is computed, none by a shortcut that could miss a smaller
one; a layout fits if it likely fits (`Sharded.fits`).  The space: tensor parallel 1 to 8 (one
machine's cards), pipelines of any depth, whose first stages have a layer more where they do not
divide the layers, ZeRO 0 to 3 (0 and 1 in a pipeline, whose micro-batches would gather and send too
often), recomputation none or full, and micro-batches of 1, 2, 4 and 8 sequences, the largest that
surely fits, or one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import ceil

from allocsim.estimate.training import Layout, Training
from allocsim.phantom import Gpu
from allocsim.questions.fit.sharded import RESERVED_SEEN, Sharded, shard
from allocsim.units import round_up

__all__ = ["Plan", "Planned", "plan"]

_TENSOR = (1, 2, 4, 8)
_MICRO_BATCHES = (1, 2, 4, 8)
_IN_A_MACHINE = 8
_MOST_CARDS = 1 << 13
_AGAIN = 1 / 3
"""Computing forward again, of forward and a backward that is twice as much."""
_MORE = (1.25, 1.5, 2, 3, 4, 6, 8)
"""Times the fewest cards that the front looks at."""
_LESS = 0.0005
"""Extra work that shows when it is printed."""
_PER_STAGE = 4
"""Micro-batches for each stage of a pipeline in a step, where nothing is asked for."""


@dataclass(frozen=True, slots=True)
class Planned:
    """One layout that fits.

    extra: work and waiting beside the training's own, as a share of it: recomputation by a third,
    and the pipeline's bubble, (p-1) of its micro-batches (Narayanan et al. 2021, section 2.2), all
    at the pace of the stage with the most layers.
    """

    answer: Sharded
    extra: float

    @property
    def cards(self) -> int:
        """How many it needs."""
        return self.answer.training.layout.ranks

    @property
    def rank(self) -> tuple[float, ...]:
        """Of two, the lower is preferred: less extra work, then less to communicate."""
        layout = self.answer.training.layout
        return (
            *(round(self.extra, 3), layout.zero, layout.tensor, layout.pipeline),
            -layout.micro_batch,
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """fewest: the cards, None if no number in the space does.

    choices: the layouts that fit on so many cards, the preferred first.  front: on more cards,
    each that has less extra work than those on fewer.  tried: how many layouts were computed.
    """

    fewest: int | None
    choices: tuple[Planned, ...]
    front: tuple[Planned, ...]
    tried: int


def plan(
    training: Training, gpu: Gpu, *, cards: int | None = None, micro_batch: int | None = None
) -> Plan:
    """The fewest cards of `gpu` for `training`.

    What is not searched for is as in its layout: tokens, attention, context parallelism,
    micro-batches of a step.  cards: exactly so many.  micro_batch: that many sequences instead of
    the largest.
    """
    search = _Search(training, gpu, micro_batch)
    tried = 0
    choices: list[Planned] = []
    for count in [cards] if cards is not None else search.counts():
        layouts = list(search.layouts(count))
        tried += len(layouts)
        choices = search.fitting(layouts)
        if choices:
            break
    if not choices:
        return Plan(None, (), (), tried)
    front = choices[:1]
    for factor in _MORE if cards is None else ():
        if not front[-1].extra:
            break
        layouts = list(search.layouts(round_up(round(front[0].cards * factor), _IN_A_MACHINE)))
        tried += len(layouts)
        best = search.fitting(layouts)[:1]
        front += [each for each in best if each.extra < front[-1].extra - _LESS]
    return Plan(choices[0].cards, tuple(choices), tuple(front), tried)


@dataclass(frozen=True, slots=True)
class _Search:
    training: Training
    gpu: Gpu
    micro_batch: int | None

    def counts(self) -> Iterator[int]:
        """Numbers of cards: 1, 2, 4 and whole machines, from where all states could fit."""
        precision = self.training.precision
        each = precision.weights + precision.gradients + precision.optimizer
        least = ceil(self.training.shape.parameters * each / max(self.gpu.room, 1))
        counts = (1, 2, 4, *range(_IN_A_MACHINE, _MOST_CARDS + 1, _IN_A_MACHINE))
        return (count for count in counts if count >= least)

    def layouts(self, cards: int) -> Iterator[Layout]:
        """Every layout on so many cards that is not hopeless, with the least micro-batch."""
        shape, context = self.training.shape, self.training.layout.context
        for t in (t for t in _TENSOR if shape.heads % t == 0 and cards % (t * context) == 0):
            left = cards // (t * context)
            for p in (p for p in range(1, min(shape.layers, left) + 1) if left % p == 0):
                data = left // p
                shards = data * context
                groups = replace(
                    self.training.layout,
                    tensor=t,
                    pipeline=p,
                    data=data,
                    expert=self._experts(shards),
                    micro_batch=self.micro_batch or 1,
                )
                stages = (0,) if shards == 1 else (0, 1) if p > 1 else (0, 1, 2, 3)
                if self._is_hopeless(replace(groups, zero=stages[-1])):
                    continue
                for zero in stages:
                    for recompute in ("none", "full"):
                        yield replace(groups, zero=zero, recompute=recompute)

    def _experts(self, shards: int) -> int:
        """The widest expert parallelism that both divide into."""
        experts = self.training.shape.experts
        return max((n for n in range(1, experts + 1) if experts % n == 0 and shards % n == 0),
                   default=1)  # fmt: skip

    def fitting(self, layouts: Iterable[Layout]) -> list[Planned]:
        """Those that fit, the preferred first."""
        found = [each for each in map(self.best, layouts) if each is not None]
        return sorted(found, key=lambda each: each.rank)

    def best(self, layout: Layout) -> Planned | None:
        """That layout with the largest micro-batch that surely fits, or the least if it likely
        does."""
        least, *more = _MICRO_BATCHES if self.micro_batch is None else (self.micro_batch,)
        best = self._answer(layout, least)
        if not best.fits:
            return None
        for size in more:
            answer = self._answer(layout, size)
            if not (answer.fits and answer.is_sure):
                break
            best = answer
        return Planned(best, self._extra(layout))

    def _answer(self, layout: Layout, size: int) -> Sharded:
        return shard(replace(self.training, layout=replace(layout, micro_batch=size)), self.gpu)

    def _is_hopeless(self, layout: Layout) -> bool:
        """Whether no layout on these groups fits: what all of them hold is too much already."""
        training = replace(self.training, layout=layout)
        return training.least() * RESERVED_SEEN[1] > self.gpu.room

    def _extra(self, layout: Layout) -> float:
        again = _AGAIN if layout.recompute == "full" else 0.0
        p = layout.pipeline
        count = min(layout.micro_batches, _PER_STAGE * p)
        bubble = (p - 1) / (count * layout.chunks)
        layers = self.training.shape.layers
        pace = ceil(layers / p) * p / layers
        return (1 + again) * (1 + bubble) * pace - 1
