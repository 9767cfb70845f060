"""What a block is for: rules, the first that holds of a block decides.

Rule: every rule says why it is true; a block that none of them reaches is unknown.  A rule sees
stacks, phases and lives (`Scene`), never the sizes of a particular model but for one thing: a
gradient is as large as its parameter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from allocsim.questions.top.scene import NEVER, Scene
from allocsim.questions.top.stacks import Origin, Phase

__all__ = ["CATEGORIES", "RULES", "UNKNOWN", "Rule", "Told", "rules_of"]

_Mask = NDArray[np.bool_]
_Column = NDArray[np.int64]

PARAMETERS = "parameters"
BUFFERS = "buffers"
GRADIENTS = "gradients"
OPTIMIZER = "optimizer state"
ACTIVATIONS = "activations kept for backward"
TEMPORARIES = "temporaries"
INPUTS = "inputs"
WORKSPACES = "workspaces"
CACHES = "caches"
UNKNOWN = "unknown"

CATEGORIES = (
    PARAMETERS,
    BUFFERS,
    GRADIENTS,
    OPTIMIZER,
    ACTIVATIONS,
    TEMPORARIES,
    INPUTS,
    WORKSPACES,
    CACHES,
    UNKNOWN,
)

WORKSPACE_SIZES = (8_519_680, 33_554_432, 1_048_576)
"""cuBLAS's workspace by PyTorch's default (two of 4 MiB, eight of 16 KiB), the same on Hopper,
cuBLASLt's."""


class Told:
    """What several rules ask of a scene, worked out once."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.blocks = scene.blocks

    @cached_property
    def lasts(self) -> _Mask:
        """Set up, and there when work on the model begins, or at the end if none does."""
        begins = min((int(s.first[0]) for s in (self.scene.forwards,) if len(s)), default=NEVER)
        begins = min(begins, self.scene.last_alloc)
        return self.scene.born_in(Phase.SETUP, Phase.PROGRAM) & (self.blocks.freed > begins)

    @cached_property
    def model_sizes(self) -> NDArray[np.int64]:
        """Sizes asked for of what was made as a parameter, or looks like it."""
        scene = self.scene
        made = scene.came_from(*_MADE_AS_PARAMETERS, Origin.OWN_LAYER)
        made |= self.lasts & scene.born_in(Phase.SETUP)
        made |= scene.is_before & scene.outlives_all
        return np.unique(self.blocks.requested[made])

    @cached_property
    def gradients(self) -> _Mask:
        """The engine's blocks that outlive the backward pass they were born in."""
        scene, blocks = self.scene, self.blocks
        made = scene.born_in(Phase.BACKWARD) & ~scene.is_before
        made &= scene.came_from(Origin.ENGINE) | (
            scene.is_engine_thread & scene.came_from(Origin.EXCHANGE)
        )
        last, after = scene.span_end(scene.backwards)
        stays = (blocks.freed > after) & (after != NEVER)
        # Dropped before anything else was asked for: only what has a parameter's size is one.
        dropped = (blocks.freed > last) & ~stays & np.isin(blocks.requested, self.model_sizes)
        before = scene.is_before & scene.came_from(Origin.ENGINE) & scene.outlives_all
        before &= ~np.isin(blocks.requested, WORKSPACE_SIZES[:2])
        return (made & (stays | dropped) & ~self.stays_as_workspace) | before

    @cached_property
    def stays_as_workspace(self) -> _Mask:
        """Blocks of a workspace's size, made within a step, that are there to the end."""
        scene, blocks = self.scene, self.blocks
        sized = np.isin(blocks.requested, WORKSPACE_SIZES[:2])
        sized &= ~np.isin(blocks.requested, self.model_sizes)
        within = scene.born_in(Phase.FORWARD, Phase.BACKWARD) | scene.is_before & scene.is_bare
        return within & sized & (blocks.freed >= blocks.n_entries)

    @cached_property
    def at_once(self) -> _Mask:
        """Blocks freed before anything else is asked for."""
        born = self.blocks.born
        following = np.append(born[1:], NEVER)
        return (self.blocks.freed < following) & ~self.scene.is_before

    @cached_property
    def next_backward(self) -> _Column:
        """Where the next backward pass begins after each birth."""
        return self.scene.backwards.next_first(self.blocks.born)

    @cached_property
    def trained(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Sizes of gradients, and how many of each were there at once at most."""
        rows = np.flatnonzero(self.gradients)
        spans = self.scene.backwards.of(self.blocks.born[rows])
        best: dict[int, int] = {}
        for span in np.unique(spans).tolist():
            end = int(self.scene.backwards.last[span]) if span >= 0 else -1
            live = rows[(self.blocks.born[rows] <= end) & (self.blocks.freed[rows] > end)]
            size, count = np.unique(self.blocks.requested[live], return_counts=True)
            for each, n in zip(size.tolist(), count.tolist(), strict=True):
                best[each] = max(best.get(each, 0), n)
        sizes = np.array(sorted(best), dtype=np.int64)
        return sizes, np.array([best[size] for size in sizes.tolist()], dtype=np.int64)

    @cached_property
    def has_gradient(self) -> _Mask:
        """Set up in no way that says what for, and of the size of a gradient that no parameter
        known otherwise accounts for; the first so many."""
        scene, blocks = self.scene, self.blocks
        open_rows = np.flatnonzero(self.lasts & scene.came_from(*_MADE_OTHERWISE))
        known = self.lasts & scene.came_from(*_MADE_AS_PARAMETERS)
        found = np.zeros(len(blocks), dtype=bool)
        for size, count in zip(*(column.tolist() for column in self.trained), strict=True):
            taken = int((known & (blocks.requested == size)).sum())
            rows = open_rows[blocks.requested[open_rows] == size]
            found[rows[: max(count - taken, 0)]] = True
        return found

    @cached_property
    def all_train(self) -> bool:
        """Whether every parameter known as one has its gradient: then what has none is none."""
        scene, blocks = self.scene, self.blocks
        known = blocks.requested[self.lasts & scene.came_from(*_MADE_AS_PARAMETERS)]
        size, count = np.unique(known, return_counts=True)
        best = dict(zip(*(column.tolist() for column in self.trained), strict=True))
        pairs = zip(size.tolist(), count.tolist(), strict=True)
        return bool(len(size)) and all(best.get(each, 0) >= n for each, n in pairs)

    @cached_property
    def repeats_a_buffer(self) -> _Mask:
        """As large as what a function worked out for the same constructor just before."""
        scene, blocks = self.scene, self.blocks
        worked_out = self.lasts & scene.born_in(Phase.SETUP) & scene.came_from(Origin.OTHER)
        found = np.zeros(len(blocks), dtype=bool)
        for row in np.flatnonzero(scene.came_from(Origin.OWN_LAYER)).tolist():
            near = slice(max(row - _NEAR, 0), row)
            same = blocks.requested[near] == blocks.requested[row]
            found[row] = bool((worked_out[near] & same).any())
        return found

    @cached_property
    def kept_by_fate(self) -> _Mask:
        """Blocks of a forward pass that the recording's end cuts, whose line kept others before."""
        scene, blocks = self.scene, self.blocks
        forward = self.of_forward & ~scene.is_before
        whole = forward & (self.next_backward != NEVER)
        kept = whole & (blocks.freed > self.next_backward)
        n_stacks = int(blocks.stack.max(initial=-1)) + 2
        n_kept = np.bincount(blocks.stack[kept] + 1, minlength=n_stacks)
        n_whole = np.bincount(blocks.stack[whole] + 1, minlength=n_stacks)
        likely = 2 * n_kept > n_whole
        # A line seen for the first time: what piles up from call to call is kept for something.
        cut = forward & (self.next_backward == NEVER) & self.cut
        piled = np.bincount(blocks.stack[cut] + 1, minlength=n_stacks) > 1
        piled &= (n_whole == 0) & (not self.is_inference)
        found: _Mask = cut & (likely | piled)[blocks.stack + 1]
        return found

    @cached_property
    def cut(self) -> _Mask:
        """Blocks whose life the recording does not show to its end."""
        return self.scene.outlives_all

    @cached_property
    def of_forward(self) -> _Mask:
        """Born in a forward pass, or between it and the backward pass, as a loss is."""
        scene = self.scene
        program = scene.born_in(Phase.PROGRAM) & ~scene.is_before
        born = self.blocks.born
        forward = scene.forwards.previous_last(born)
        others = np.maximum(
            scene.backwards.previous_last(born), scene.optimizers.previous_last(born)
        )
        # Where no module is ever called, the program's own code is the forward pass.
        is_forward = (forward > others) | (not len(scene.forwards))
        between = program & is_forward & (self.next_backward != NEVER)
        between &= self.blocks.freed > self.next_backward
        # A batch made before the next forward pass is no part of the one before.
        between &= ~(scene.forwards.next_first(born) < self.next_backward)
        return (scene.born_in(Phase.FORWARD) & ~scene.is_engine_thread) | between

    @cached_property
    def is_inference(self) -> bool:
        """Whether nothing is trained: no backward pass, no optimizer."""
        scene = self.scene
        told = len(scene.backwards) + len(scene.optimizers)
        return not told and not self.piles_up

    @cached_property
    def piles_up(self) -> bool:
        """Whether a forward pass that nothing follows keeps more than half of what it asked for:
        so does training that never came to its first backward pass."""
        scene, blocks = self.scene, self.blocks
        if not len(scene.forwards) or scene.backwards.first.size:
            return False
        rows = scene.born_in(Phase.FORWARD) & ~scene.came_from(Origin.CACHE)
        total = int(blocks.requested[rows].sum())
        kept = int(blocks.requested[rows & (blocks.freed >= blocks.n_entries)].sum())
        return 2 * kept > total

    @cached_property
    def call_end(self) -> tuple[_Column, _Column]:
        """Of the forward pass that each block was born in, its end and the next one's start."""
        last, _ = self.scene.span_end(self.scene.forwards)
        return last, self.scene.forwards.next_first(self.blocks.born)

    @cached_property
    def dies_within_later_call(self) -> _Mask:
        """Freed in the midst of a later forward pass: something replaced it there."""
        spans = self.scene.forwards
        later = spans.of(self.blocks.freed) > spans.of(self.blocks.born)
        return self.scene.dies_within(spans) & later

    @cached_property
    def from_before(self) -> tuple[_Mask, _Mask]:
        """Blocks from before that are parameters, and optimizer state, told by gradients alone.

        With n gradients of a size there are n parameters of that size and, with an optimizer at
        work, one or two times as many blocks of state: there to the end if it makes none any
        more, replaced in its step if it does.
        """
        scene, blocks = self.scene, self.blocks
        parameters = np.zeros(len(blocks), dtype=bool)
        state = np.zeros(len(blocks), dtype=bool)
        silent = np.flatnonzero(scene.is_before & scene.is_bare & ~scene.came_from(Origin.ENGINE))
        stays = scene.outlives_all[silent]
        replaced = silent[~stays & scene.dies_within(scene.optimizers)[silent]]
        for size, count in zip(*(column.tolist() for column in self.trained), strict=True):
            rows = silent[stays & (blocks.requested[silent] == size)]
            if len(rows) < count:
                continue
            parameters[rows[:count]] = True
            if len(scene.optimizers) and not self.state_of_step.any():
                state[rows[count : 3 * count]] = len(rows) >= 2 * count
            state[replaced[blocks.requested[replaced] == size]] = True
        return parameters, state

    @cached_property
    def state_of_step(self) -> _Mask:
        """What an optimizer's step asked for and did not give back."""
        scene, blocks = self.scene, self.blocks
        born = scene.born_in(Phase.OPTIMIZER) & ~scene.is_before
        last, after = scene.span_end(scene.optimizers)
        stays = (blocks.freed > after) & (after != NEVER)
        cut = (after == NEVER) & (blocks.freed >= blocks.n_entries)
        named = scene.came_from(Origin.STATE) & (blocks.freed > last)
        return born & (stays | cut | named)


_NEAR = 8
"""Allocations of one constructor that are looked at together."""

_MADE_AS_PARAMETERS = (Origin.LAYER, Origin.CONVERTED, Origin.SHARDED, Origin.COPIED)
_MADE_OTHERWISE = (Origin.OWN_LAYER, Origin.OTHER, Origin.FILLED, Origin.LOADED)


@dataclass(frozen=True, slots=True)
class Rule:
    """category: of the blocks for which it `holds`.  reason: why that is so."""

    category: str
    reason: str
    holds: Callable[[Told], _Mask]


def _made_as_parameter(told: Told) -> _Mask:
    return told.scene.came_from(*_MADE_AS_PARAMETERS)


def _made_beside(told: Told) -> _Mask:
    return told.scene.came_from(Origin.LAYER_STATISTICS, Origin.CONVERTED_REST)


def _own_layer(told: Told) -> _Mask:
    own = told.scene.came_from(Origin.OWN_LAYER) & told.lasts
    return own & ~_is_told_none(told) & ~told.repeats_a_buffer


def _is_told_none(told: Told) -> _Mask:
    """Without a gradient where every parameter has one."""
    nobody = np.full(len(told.blocks), told.all_train)
    return nobody & ~told.has_gradient


def _loaded(told: Told) -> _Mask:
    return told.scene.came_from(Origin.LOADED) & told.lasts


def _set_up(told: Told) -> _Mask:
    return told.scene.born_in(Phase.SETUP) & told.lasts


def _state_before(told: Told) -> _Mask:
    return told.scene.is_before & told.scene.born_in(Phase.OPTIMIZER)


def _optimizer_temporaries(told: Told) -> _Mask:
    return told.scene.born_in(Phase.OPTIMIZER)


def _cache(told: Told) -> _Mask:
    scene, blocks = told.scene, told.blocks
    named = scene.came_from(Origin.CACHE) & ~scene.born_in(Phase.BACKWARD)
    if len(scene.backwards):
        named &= ~scene.born_in(Phase.FORWARD) | (told.next_backward == NEVER)
    end, _ = told.call_end
    return named & (scene.is_before | (blocks.freed > end) | ~scene.born_in(Phase.FORWARD))


def _kept_between_calls(told: Told) -> _Mask:
    scene, blocks = told.scene, told.blocks
    forward = scene.born_in(Phase.FORWARD) & ~scene.is_before
    _, following = told.call_end
    second = scene.forwards.next_first(following)
    lives_on = (blocks.freed > second) & (second != NEVER)
    in_training = scene.backwards.next_first(told.next_backward)
    lives_on &= (told.next_backward == NEVER) | (
        (blocks.freed > in_training) & (in_training != NEVER)
    )
    replaced = told.dies_within_later_call & (told.next_backward == NEVER)
    return forward & ~scene.is_engine_thread & (lives_on | replaced)


def _workspace(told: Told) -> _Mask:
    within = told.scene.born_in(Phase.FORWARD, Phase.BACKWARD)
    sized = np.isin(told.blocks.requested, WORKSPACE_SIZES)
    return (within & sized & told.at_once) | told.stays_as_workspace


def _exchange(told: Told) -> _Mask:
    return told.scene.came_from(Origin.EXCHANGE, Origin.SCALER)


def _kept_for_backward(told: Told) -> _Mask:
    whole = told.next_backward != NEVER
    kept = whole & (told.blocks.freed > told.next_backward)
    return told.of_forward & ~told.scene.is_before & (kept | told.kept_by_fate)


def _recomputed(told: Told) -> _Mask:
    """Python of the engine's thread whose block outlives that stretch of Python."""
    scene, blocks = told.scene, told.blocks
    again = scene.is_engine_thread & scene.born_in(Phase.BACKWARD) & ~scene.is_before
    engine = np.sort(blocks.born[scene.is_bare & ~scene.is_before])
    following = np.append(engine, NEVER)[np.searchsorted(engine, blocks.born, side="right")]
    return again & (blocks.freed > following) & (following != NEVER)


def _of_backward(told: Told) -> _Mask:
    return told.scene.born_in(Phase.BACKWARD) & ~told.scene.is_before


def _of_forward(told: Told) -> _Mask:
    return told.scene.born_in(Phase.FORWARD) & ~told.scene.is_before


def _input(told: Told) -> _Mask:
    scene, blocks = told.scene, told.blocks
    made = scene.born_in(Phase.PROGRAM) & ~scene.is_before
    following = scene.forwards.next_first(blocks.born)
    is_met = (following != NEVER) & (blocks.freed > following)
    is_cut = (following == NEVER) & (blocks.freed >= blocks.n_entries)
    return made & (is_met | is_cut)


def _of_program(told: Told) -> _Mask:
    return told.scene.born_in(Phase.PROGRAM, Phase.SETUP) & ~told.scene.is_before


RULES: tuple[Rule, ...] = (
    Rule(
        PARAMETERS,
        "a layer of torch.nn makes nothing but its parameters in its constructor, and moving or "
        "copying a module makes them anew, the parameters before the buffers",
        _made_as_parameter,
    ),
    Rule(
        BUFFERS,
        "a norm makes its running statistics after its parameters, and moving a module moves its "
        "buffers last",
        _made_beside,
    ),
    Rule(
        GRADIENTS,
        "a constructor that makes one buffer for many parameters makes the gradients' after it",
        lambda told: told.scene.came_from(Origin.GRADIENT_BUFFER),
    ),
    Rule(
        CACHES,
        "code that is named as a cache of keys and values asked for it, and it outlives the call",
        _cache,
    ),
    Rule(
        PARAMETERS,
        "made while the model was set up, and a gradient of its size has no other parameter",
        lambda told: told.has_gradient,
    ),
    Rule(
        PARAMETERS,
        "a module of the program's own made it in its constructor; not where every parameter has "
        "its gradient and this has none",
        _own_layer,
    ),
    Rule(PARAMETERS, "read from a checkpoint into a module, and kept", _loaded),
    Rule(
        BUFFERS,
        "made while the model was set up, kept, and no parameter by the rules above",
        _set_up,
    ),
    Rule(
        OPTIMIZER,
        "an optimizer's step asked for it and did not give it back when it ended",
        lambda told: told.state_of_step,
    ),
    Rule(OPTIMIZER, "an optimizer asked for it before, and it is still there", _state_before),
    Rule(TEMPORARIES, "an optimizer's step asked for it and gave it back", _optimizer_temporaries),
    Rule(
        GRADIENTS,
        "autograd made it in a backward pass and it outlives that pass: only gradients of "
        "parameters do",
        lambda told: told.gradients,
    ),
    Rule(
        WORKSPACES,
        "a matrix library's workspace: of its size, and given back before anything else is asked "
        "for, or never",
        _workspace,
    ),
    Rule(
        WORKSPACES,
        "code that exchanges with other ranks, or scales gradients, keeps it for itself",
        _exchange,
    ),
    Rule(
        CACHES,
        "made in a forward pass, and it lives through later ones, or is replaced in one",
        _kept_between_calls,
    ),
    Rule(
        ACTIVATIONS,
        "made in a forward pass and still there when the backward pass begins; where the "
        "recording ends before, as its line did in earlier steps",
        _kept_for_backward,
    ),
    Rule(
        ACTIVATIONS,
        "recomputed for the backward pass (checkpointing), and in use when it goes on",
        _recomputed,
    ),
    Rule(TEMPORARIES, "made in a backward pass and given back in it", _of_backward),
    Rule(TEMPORARIES, "made in a forward pass and given back before the backward pass", _of_forward),
    Rule(
        INPUTS,
        "the program made it outside any module, and it is there when the next forward pass begins",
        _input,
    ),
    Rule(TEMPORARIES, "the program made it and gave it back before any forward pass", _of_program),
    Rule(
        PARAMETERS,
        "from before the recording, there to its end, and as many gradients of its size are made",
        lambda told: told.from_before[0],
    ),
    Rule(
        OPTIMIZER,
        "the same, beyond the parameters: one or two for each while an optimizer makes none, or what "
        "its step replaces",
        lambda told: told.from_before[1],
    ),
)


def rules_of(scene: Scene) -> NDArray[np.int64]:
    """For each block the number of the rule that decides, -1 where none does."""
    told = Told(scene)
    found = np.full(len(scene.blocks), -1, dtype=np.int64)
    for number, rule in enumerate(RULES):
        found[(found < 0) & rule.holds(told)] = number
    return found
