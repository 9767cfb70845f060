"""Rules that assign a category, such as "parameters", to each block; the first that matches wins.

Rules use stacks, training phases and lifetimes.  They use sizes only to match gradients with
parameters and to recognise workspaces.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from allocsim._fast_numpy import distinct
from allocsim.ownership.blocks import Blocks
from allocsim.ownership.evidence import MADE_AS_PARAMETERS, WORKSPACE_SIZES, Evidence
from allocsim.ownership.scene import NEVER, Scene, scene_of
from allocsim.ownership.stacks import Origin, Phase, kinds_of
from allocsim.recording import FrameTable

_Mask = NDArray[np.bool_]

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
    *(PARAMETERS, BUFFERS, GRADIENTS, OPTIMIZER, ACTIVATIONS),
    *(TEMPORARIES, INPUTS, WORKSPACES, CACHES, UNKNOWN),
)


@dataclass(frozen=True, slots=True)
class CategoryRule:
    """Rule that assigns a category to certain blocks.

    category: one of `CATEGORIES`.
    reason: explanation of the rule for the user, as a clause.
    holds: function that returns a mask of the blocks to which the rule applies.
    """

    category: str
    reason: str
    holds: Callable[[Evidence], _Mask]


def _came_from(*origins: Origin) -> Callable[[Evidence], _Mask]:
    return lambda known: known.scene.came_from(*origins)


def _own_layer(known: Evidence) -> _Mask:
    may_train = known.has_gradient | (not known.all_train)
    own = known.scene.came_from(Origin.OWN_LAYER) & known.lasts
    found: _Mask = own & may_train & ~known.copied_buffers
    return found


def _cache(known: Evidence) -> _Mask:
    scene, blocks = known.scene, known.blocks
    named = scene.came_from(Origin.CACHE) & ~scene.born_in(Phase.BACKWARD)
    if len(scene.backwards):
        named &= ~scene.born_in(Phase.FORWARD) | (known.next_backward == NEVER)
    end, _ = known.ends_and_next_begins
    return named & (scene.is_before | (blocks.freed > end) | ~scene.born_in(Phase.FORWARD))


def _kept_between_calls(known: Evidence) -> _Mask:
    scene, blocks = known.scene, known.blocks
    forward = scene.born_in(Phase.FORWARD) & ~scene.is_before & ~scene.is_engine_thread
    _, following = known.ends_and_next_begins
    second = scene.forwards.next_first(following)
    lives_on = (blocks.freed > second) & (second != NEVER)
    third_backward = scene.backwards.next_first(scene.backwards.next_first(known.next_backward))
    outlasts = (blocks.freed > third_backward) & (third_backward != NEVER)
    lives_on &= (known.next_backward == NEVER) | (outlasts & ~scene.dies_within(scene.backwards))
    replaced = known.dies_in_later_forward_pass & (known.next_backward == NEVER)
    found: _Mask = forward & (lives_on | replaced)
    return found


def _workspace(known: Evidence) -> _Mask:
    within = known.scene.born_in(Phase.FORWARD, Phase.BACKWARD)
    sized = np.isin(known.blocks.requested, WORKSPACE_SIZES)
    return (within & sized & known.freed_at_once) | known.stays_as_workspace


def _kept_for_backward(known: Evidence) -> _Mask:
    whole = known.next_backward != NEVER
    kept = whole & (known.blocks.freed > known.next_backward)
    made = known.of_forward & ~known.scene.is_before & ~known.scene.is_without_grad
    found: _Mask = made & (kept | known.kept_by_fate)
    return found


def _recomputed(known: Evidence) -> _Mask:
    # Python code in autograd's thread allocated the block, and the block was still in use when
    # autograd itself next allocated memory.
    scene, blocks = known.scene, known.blocks
    again = scene.is_engine_thread & scene.born_in(Phase.BACKWARD) & ~scene.is_before
    engine = np.sort(blocks.born[scene.is_bare & ~scene.is_before])
    following = np.append(engine, NEVER)[np.searchsorted(engine, blocks.born, side="right")]
    found: _Mask = again & (blocks.freed > following) & (following != NEVER)
    return found


def _input(known: Evidence) -> _Mask:
    scene, blocks = known.scene, known.blocks
    made = scene.born_in(Phase.PROGRAM) & ~scene.is_before
    following = scene.forwards.next_first(blocks.born)
    is_met = (following != NEVER) & (blocks.freed > following)
    is_cut = (following == NEVER) & (blocks.freed >= blocks.n_entries)
    found: _Mask = made & (is_met | is_cut)
    return found


_BY_PROFILER = (
    (PARAMETERS, Origin.TOLD_PARAMETER),
    (OPTIMIZER, Origin.TOLD_OPTIMIZER),
    (INPUTS, Origin.TOLD_INPUT),
    (TEMPORARIES, Origin.TOLD_TEMPORARY),
    (ACTIVATIONS, Origin.TOLD_ACTIVATION),
    (GRADIENTS, Origin.TOLD_GRADIENT),
)
"""Categories in the memory timeline of PyTorch's profiler, each with its `Origin`."""


RULES: tuple[CategoryRule, ...] = (
    *(
        CategoryRule(category, "the profiler's memory timeline says so", _came_from(origin))
        for category, origin in _BY_PROFILER
    ),
    CategoryRule(PARAMETERS,
        "the constructor of a torch.nn layer allocates only its parameters, and moving or copying "
        "a module allocates them again, before the buffers",
        _came_from(*MADE_AS_PARAMETERS)),
    CategoryRule(BUFFERS,
        "a norm allocates its running statistics after its parameters, and moving a module moves "
        "its buffers last",
        _came_from(Origin.LAYER_STATISTICS, Origin.CONVERTED_REST)),
    CategoryRule(GRADIENTS,
        "a constructor that allocates one buffer for many parameters then allocates the one for "
        "their gradients",
        _came_from(Origin.GRADIENT_BUFFER)),
    CategoryRule(CACHES,
        "code with the name of a key-value cache requested it, and it outlives the call",
        _cache),
    CategoryRule(PARAMETERS,
        "allocated while the model was set up, and a gradient of its size has no other parameter",
        lambda known: known.has_gradient),
    CategoryRule(PARAMETERS,
        "the constructor of a module of the program allocated it, unless every known parameter has "
        "a gradient and this block has none",
        _own_layer),
    CategoryRule(PARAMETERS,
        "read from a checkpoint into a module, and kept",
        lambda known: known.scene.came_from(Origin.LOADED) & known.lasts),
    CategoryRule(BUFFERS,
        "allocated while the model was set up, kept, and not a parameter by the rules above",
        lambda known: known.scene.born_in(Phase.SETUP) & known.lasts),
    CategoryRule(OPTIMIZER,
        "an optimizer's step requested it and had not freed it when the step ended",
        lambda known: known.state_of_step),
    CategoryRule(OPTIMIZER,
        "an optimizer requested it before the recording, and it is still allocated",
        lambda known: known.scene.is_before & known.scene.born_in(Phase.OPTIMIZER)),
    CategoryRule(TEMPORARIES,
        "an optimizer's step requested it and freed it",
        lambda known: known.scene.born_in(Phase.OPTIMIZER)),
    CategoryRule(GRADIENTS,
        "autograd allocated it in a backward pass and it outlives that pass, as only gradients of "
        "parameters do",
        lambda known: known.gradients),
    CategoryRule(WORKSPACES,
        "it has the size of a matrix library's workspace, and is freed before the next request or "
        "never",
        _workspace),
    CategoryRule(WORKSPACES,
        "code that communicates with other ranks or scales gradients requested it",
        _came_from(Origin.EXCHANGE, Origin.SCALER)),
    CategoryRule(CACHES,
        "allocated in a forward pass, and it outlives later ones or is replaced in one",
        _kept_between_calls),
    CategoryRule(ACTIVATIONS,
        "allocated in a forward pass and still allocated when the backward pass begins; if the "
        "recording ends sooner, blocks of the same line were in earlier steps",
        _kept_for_backward),
    CategoryRule(ACTIVATIONS,
        "recomputed for the backward pass (checkpointing), and in use when that continues",
        _recomputed),
    CategoryRule(TEMPORARIES,
        "allocated in a backward pass and freed in it",
        lambda known: known.scene.born_in(Phase.BACKWARD) & ~known.scene.is_before),
    CategoryRule(TEMPORARIES,
        "allocated in a forward pass and freed before the backward pass",
        lambda known: known.scene.born_in(Phase.FORWARD) & ~known.scene.is_before),
    CategoryRule(INPUTS,
        "the program allocated it outside any module, and it is in use when the next forward pass "
        "begins",
        _input),
    CategoryRule(TEMPORARIES,
        "the program allocated it outside any module and freed it before the next forward pass",
        lambda known: known.scene.born_in(Phase.PROGRAM, Phase.SETUP) & ~known.scene.is_before),
    CategoryRule(PARAMETERS,
        "from before the recording, allocated to its end, and there are as many gradients of its "
        "size",
        lambda known: known.from_before[0]),
    CategoryRule(OPTIMIZER,
        "from before the recording, beyond the parameters: one or two blocks for each parameter if "
        "no optimizer allocates state, or blocks that its step replaces",
        lambda known: known.from_before[1]),
)  # fmt: skip


def rules_of(scene: Scene) -> NDArray[np.int64]:
    """Return for each block the index in `RULES` of the first rule that applies; -1 if none."""
    if not scene.rules:
        known = Evidence(scene)
        found = np.full(len(scene.blocks), -1, dtype=np.int64)
        for number, rule in enumerate(RULES):
            is_open = found < 0
            if not is_open.any():
                break
            found[is_open & rule.holds(known)] = number
        scene.rules.append(found)
    return scene.rules[0]


def categories_of(scene: Scene) -> NDArray[np.int64]:
    return _NUMBERS[rules_of(scene)]


_NUMBERS = np.array(
    [*(CATEGORIES.index(rule.category) for rule in RULES), CATEGORIES.index(UNKNOWN)]
)
"""Index in `CATEGORIES` for each rule in `RULES`; the last item, for no rule, is "unknown"."""


def purposes_of(
    table: FrameTable,
    stack: NDArray[np.integer[Any]],
    requested: NDArray[np.int64],
    lives: Sequence[NDArray[np.int64]],
    n_entries: int,
) -> NDArray[np.int64]:
    """Return the category of each block of a program, as an index into `CATEGORIES`.

    stack: stack index in `table` of each block's request.
    requested: requested bytes of each block.
    lives: two columns: for each block, the index of the allocator call that requests it, and of the
        call that frees it (`n_entries` if none does).
    n_entries: number of all allocator calls of the program.
    """
    born, freed = lives
    n = len(born)
    blocks = Blocks(
        address=np.zeros(n, dtype=np.uint64),
        size=requested,
        requested=requested,
        stream=np.zeros(n, dtype=np.uint64),
        pool=np.full(n, -1, dtype=np.int32),
        stack=stack.astype(np.int32),
        born=born,
        freed=freed,
        completed=freed,
        n_entries=n_entries,
        pools=(),
    )
    kinds = kinds_of(table, distinct(blocks.stack).tolist())
    return categories_of(scene_of(blocks, kinds, is_state_only=False))
