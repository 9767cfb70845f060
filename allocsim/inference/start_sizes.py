"""Sizes of blocks from before the first entry, learned from recorded requests.

A recording that starts mid-run shows only the request of such a block.  The block may be up to 1
MiB larger, because a free block of the large pool is not split for a smaller rest.  If a replay
would serve a request from the free block behind it, and the recorded program did not, then that
free block was smaller, and the block larger.
Source: semantics 1.7, 6.6.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from allocsim.core import MIN_BLOCK_SIZE
from allocsim.simulation import Drive, GiveUpError, Plan, RecordedDevice
from allocsim.state import BlockState, SegmentState
from allocsim.units import MIB, TIB, round_up


def has_unknown_sizes(device: RecordedDevice) -> bool:
    """Return True if a block from before the first entry may be larger than in `device.start`."""
    return any(block.is_least for segment in device.start for block in segment.blocks)


def learn_start(device: RecordedDevice, plan: Plan) -> tuple[SegmentState, ...]:
    """Return `device.start` with larger blocks where a replay shows that they were larger.

    The recording is replayed up to the first difference that no size explains.
    """
    memory = device.capacity_of(plan)
    allocator = device.allocator(
        device.recorded,
        memory,
        address_policy="bump",
        base_address=round_up(device.last_address, TIB),
        fast_path=False,
        limit=device.limit_for(device.recorded, memory, plan),
    )
    blocks = (block for segment in device.start for block in segment.blocks)
    limits = {block.address: block.size + MIB for block in blocks if block.is_least}
    drive = _Learner(
        allocator, plan, len(device.trace), dictates=True, device=device, limits=limits
    )
    drive.run()
    return tuple(_with_sizes(segment, drive.sizes) for segment in device.start)


@dataclass
class _Learner(Drive):
    device: RecordedDevice = field(kw_only=True)
    limits: dict[int, int] = field(kw_only=True)
    sizes: dict[int, int] = field(default_factory=dict)

    def _request(self, addr: int, size: int, stream: int) -> int:
        change = super()._request(addr, size, stream)
        while (block := self.allocator.named_blocks.get(addr)) and block.ptr != addr:
            ptr = self.allocator.take_name(addr)
            assert ptr is not None
            self.allocator.free(ptr)  # now `block` is the free block that was chosen
            before = block.prev
            surplus = block.size - self.device.config.round_size(size) + MIN_BLOCK_SIZE
            if before is None or before.size + surplus > self.limits.get(before.ptr, 0):
                raise GiveUpError
            self.allocator.extend(before, surplus)
            self.sizes[before.ptr] = before.size
            change = super()._request(addr, size, stream)
        return change

    def _take(self, kind: int, addr: int, size: int, stream: int) -> None:
        self.limits.pop(addr, None)  # a free of the block, or a request at its address
        super()._take(kind, addr, size, stream)


def _with_sizes(segment: SegmentState, sizes: Mapping[int, int]) -> SegmentState:
    blocks: list[BlockState] = []
    extra = 0  # bytes that the block before took from this one
    for block in segment.blocks:
        at, taken = block.address + extra, extra
        extra = sizes.get(block.address, block.size) - block.size
        blocks.append(replace(block, address=at, size=block.size - taken + extra))
    return replace(segment, blocks=tuple(blocks))
