"""Facts about the blocks of a recording that several category rules (rules.py) use.

Facts are inferred from lifetimes and stacks.  Each is computed on first use and cached.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from allocsim._fast_numpy import distinct
from allocsim.ownership.scene import NEVER, Scene
from allocsim.ownership.stacks import Origin, Phase

_Mask = NDArray[np.bool_]
_Column = NDArray[np.int64]

WORKSPACE_SIZES = (8_519_680, 33_554_432, 1_048_576)
"""Bytes of the workspaces of cuBLAS (twice 4 MiB and eight times 16 KiB), of cuBLAS on Hopper GPUs,
and of cuBLASLt."""

_NEAR = 8  # number of allocations before a buffer among which the copied tensor is searched

MADE_AS_PARAMETERS = (Origin.LAYER, Origin.CONVERTED, Origin.SHARDED, Origin.COPIED)
_MADE_OTHERWISE = (Origin.OWN_LAYER, Origin.OTHER, Origin.FILLED, Origin.LOADED)


class Evidence:
    """Cached facts about the blocks of one device.

    A mask has one item per block.  The docstring of a mask describes the blocks whose item is True.
    """

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.blocks = scene.blocks

    @cached_property
    def lasts(self) -> _Mask:
        """Blocks that code outside training phases requested, in use until the first forward pass.

        If there is no forward pass, they must be in use until the last allocation.
        """
        begins = int(np.append(self.scene.forwards.first, NEVER)[0])
        begins = min(begins, self.scene.last_alloc)
        return self.scene.born_in(Phase.SETUP, Phase.PROGRAM) & (self.blocks.freed > begins)

    @cached_property
    def model_sizes(self) -> NDArray[np.int64]:
        """Distinct requested sizes, in bytes, of all blocks that may be parameters."""
        scene = self.scene
        made = scene.came_from(*MADE_AS_PARAMETERS, Origin.OWN_LAYER)
        made |= self.lasts & scene.born_in(Phase.SETUP)
        made |= scene.is_before & scene.outlives_all
        return distinct(self.blocks.requested[made])

    @cached_property
    def gradients(self) -> _Mask:
        """Blocks that autograd allocated in a backward pass and that are in use after this pass."""
        scene, blocks = self.scene, self.blocks
        made = scene.born_in(Phase.BACKWARD) & ~scene.is_before
        made &= scene.came_from(Origin.ENGINE, Origin.NODE) | (
            scene.is_engine_thread & scene.came_from(Origin.EXCHANGE)
        )
        last, after = scene.span_end(scene.backwards)
        stays = (blocks.freed > after) & (after != NEVER)
        # A block that is freed between the pass and the next allocation counts only if a parameter
        # has the same size.
        dropped = (blocks.freed > last) & ~stays & np.isin(blocks.requested, self.model_sizes)
        before = scene.is_before & scene.came_from(Origin.ENGINE) & scene.outlives_all
        before &= ~np.isin(blocks.requested, WORKSPACE_SIZES[:2])
        found: _Mask = (made & (stays | dropped) & ~self.stays_as_workspace) | before
        return found

    @cached_property
    def stays_as_workspace(self) -> _Mask:
        """Blocks of a workspace's size that are never freed.

        A forward or backward pass requested them, or they are older than the recording and have no
        stack.
        """
        scene, blocks = self.scene, self.blocks
        sized = np.isin(blocks.requested, WORKSPACE_SIZES[:2])
        sized &= ~np.isin(blocks.requested, self.model_sizes)
        within = scene.born_in(Phase.FORWARD, Phase.BACKWARD) | scene.is_before & scene.is_bare
        return within & sized & (blocks.freed >= blocks.n_entries)

    @cached_property
    def freed_at_once(self) -> _Mask:
        born = self.blocks.born
        following = np.append(born[1:], NEVER)
        return (self.blocks.freed < following) & ~self.scene.is_before

    @cached_property
    def next_backward(self) -> _Column:
        """First entry of the first backward pass after each block's allocation, or `NEVER`."""
        return self.scene.backwards.next_first(self.blocks.born)

    @cached_property
    def gradient_counts(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Distinct sizes of gradients in bytes, and the number of gradients of each size.

        The number is the largest that is in use at the end of any backward pass.
        """
        rows = np.flatnonzero(self.gradients)
        spans = self.scene.backwards.of(self.blocks.born[rows])
        best: dict[int, int] = {}
        for span in distinct(spans).tolist():
            end = int(self.scene.backwards.last[span]) if span >= 0 else -1
            live = rows[(self.blocks.born[rows] <= end) & (self.blocks.freed[rows] > end)]
            size, count = np.unique(self.blocks.requested[live], return_counts=True)
            for each, n in zip(size.tolist(), count.tolist(), strict=True):
                best[each] = max(best.get(each, 0), n)
        sizes = np.array(sorted(best), dtype=np.int64)
        return sizes, np.array([best[size] for size in sizes.tolist()], dtype=np.int64)

    @cached_property
    def has_gradient(self) -> _Mask:
        """Blocks from before training that must be parameters, since gradients of their size exist.

        If a size has n more gradients than parameters known from stacks, the first n other blocks
        of that size are taken for parameters.
        """
        scene, blocks = self.scene, self.blocks
        stays = self.lasts & (scene.born_in(Phase.SETUP) | scene.outlives_all)
        open_rows = np.flatnonzero(stays & scene.came_from(*_MADE_OTHERWISE))
        known = self.lasts & scene.came_from(*MADE_AS_PARAMETERS)
        found = np.zeros(len(blocks), dtype=bool)
        for size, count in zip(*(column.tolist() for column in self.gradient_counts), strict=True):
            taken = int((known & (blocks.requested == size)).sum())
            rows = open_rows[blocks.requested[open_rows] == size]
            found[rows[: max(count - taken, 0)]] = True
            beyond = count - taken - len(rows)
            if 0 < beyond < count:
                # The other gradients are in larger tensors, such as that of a ViT's class token,
                # which is concatenated with an image.  Their size is a multiple of a parameter's.
                own = stays & scene.came_from(Origin.OWN_LAYER) & ~found & ~self.copied_buffers
                rows = np.flatnonzero(own & (blocks.requested > 0) & (blocks.requested < size))
                found[rows[size % blocks.requested[rows] == 0][:beyond]] = True
        return found

    @cached_property
    def all_train(self) -> bool:
        """True if, for each size, there are at least as many gradients as known parameters.

        Known parameters are recognised from their stacks.  If True, none is probably frozen.
        """
        scene, blocks = self.scene, self.blocks
        known = blocks.requested[self.lasts & scene.came_from(*MADE_AS_PARAMETERS)]
        size, count = np.unique(known, return_counts=True)
        best = dict(zip(*(column.tolist() for column in self.gradient_counts), strict=True))
        pairs = zip(size.tolist(), count.tolist(), strict=True)
        return bool(len(size)) and all(best.get(each, 0) >= n for each, n in pairs)

    @cached_property
    def copied_buffers(self) -> _Mask:
        """Blocks that a module's constructor requests soon after computing a tensor of equal size.

        Such a block is a copy of the tensor that the module registers as a buffer.
        """
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
        """Blocks probably saved for a backward pass that comes after the end of the recording.

        A forward pass allocated them, and they are allocated at the last allocation.  If earlier
        forward passes with a backward pass allocated blocks with the same stack, most of those were
        in use until their backward pass.  If none did, either `piles_up` is True, or there was a
        backward pass and several of these blocks have the same stack.
        """
        scene, blocks = self.scene, self.blocks
        forward = self.of_forward & ~scene.is_before
        whole = forward & (self.next_backward != NEVER)
        kept = whole & (blocks.freed > self.next_backward)
        n_stacks = int(blocks.stack.max(initial=-1)) + 2
        n_kept = np.bincount(blocks.stack[kept] + 1, minlength=n_stacks)
        n_whole = np.bincount(blocks.stack[whole] + 1, minlength=n_stacks)
        likely = 2 * n_kept > n_whole
        cut = forward & (self.next_backward == NEVER) & scene.outlives_all
        # For stacks that earlier forward passes lack: blocks that accumulate are kept.
        repeats = np.bincount(blocks.stack[cut] + 1, minlength=n_stacks) > 1
        piled = (n_whole == 0) & (self.piles_up | (repeats & bool(len(scene.backwards))))
        found: _Mask = cut & (likely | piled)[blocks.stack + 1] & ~scene.is_without_grad
        return found

    @cached_property
    def of_forward(self) -> _Mask:
        """Blocks allocated in a forward pass, or between forward and backward, such as a loss."""
        scene = self.scene
        program = np.flatnonzero(scene.born_in(Phase.PROGRAM) & ~scene.is_before)
        born, following = self.blocks.born[program], self.next_backward[program]
        forward = scene.forwards.previous_last(born)
        others = np.maximum(
            scene.backwards.previous_last(born), scene.optimizers.previous_last(born)
        )
        # If no module is ever called, the program's own code is the forward pass.
        is_forward = (forward > others) | (not len(scene.forwards))
        between = is_forward & (following != NEVER) & (self.blocks.freed[program] > following)
        # A batch that is created between two forward passes does not belong to the first of them.
        between &= ~(scene.forwards.next_first(born) < following)
        found: _Mask = scene.born_in(Phase.FORWARD) & ~scene.is_engine_thread
        found[program] |= between
        return found

    @cached_property
    def piles_up(self) -> bool:
        """True if the recording looks like training that failed before its first backward pass.

        It has no backward pass, and over half of the bytes that forward passes requested are still
        allocated at the last allocation.  Inference would have freed most of them.
        """
        scene, blocks = self.scene, self.blocks
        if not len(scene.forwards) or scene.backwards.first.size:
            return False
        rows = scene.born_in(Phase.FORWARD) & ~scene.came_from(Origin.CACHE)
        rows &= ~scene.is_without_grad & ~self.freed_at_once
        total = int(blocks.requested[rows].sum())
        kept = int(blocks.requested[rows & scene.outlives_all].sum())
        return 2 * kept > total

    @cached_property
    def ends_and_next_begins(self) -> tuple[_Column, _Column]:
        """Entries at which each block's forward pass ends, and at which the next one begins.

        The forward pass of a block is the latest that began before the block's allocation.
        """
        last, _ = self.scene.span_end(self.scene.forwards)
        return last, self.scene.forwards.next_first(self.blocks.born)

    @cached_property
    def dies_in_later_forward_pass(self) -> _Mask:
        spans = self.scene.forwards
        later = spans.of(self.blocks.freed) > spans.of(self.blocks.born)
        return self.scene.dies_within(spans) & later

    @cached_property
    def from_before(self) -> tuple[_Mask, _Mask]:
        """Two masks for blocks from before the recording: parameters, and optimizer state.

        If there are n gradients of a size, n blocks of that size are taken for parameters, and the
        next n or 2n blocks for optimizer state if an optimizer runs.  These blocks must not be
        freed, except optimizer state that a step of the optimizer replaces.
        """
        scene, blocks = self.scene, self.blocks
        parameters = np.zeros(len(blocks), dtype=bool)
        state = np.zeros(len(blocks), dtype=bool)
        silent = np.flatnonzero(scene.is_before & scene.is_bare & ~scene.came_from(Origin.ENGINE))
        stays = scene.outlives_all[silent]
        replaced = silent[~stays & scene.dies_within(scene.optimizers)[silent]]
        for size, count in zip(*(column.tolist() for column in self.gradient_counts), strict=True):
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
        """Blocks that a step of an optimizer allocates and that are in use after this step."""
        scene, blocks = self.scene, self.blocks
        born = scene.born_in(Phase.OPTIMIZER) & ~scene.is_before
        last, after = scene.span_end(scene.optimizers)
        stays = (blocks.freed > after) & (after != NEVER)
        cut = (after == NEVER) & (blocks.freed >= blocks.n_entries)
        named = scene.came_from(Origin.STATE) & (blocks.freed > last)
        found: _Mask = born & (stays | cut | named)
        return found
