"""Exact model of PyTorch's native CUDA caching allocator, for one device.

In the core, "upstream" is the C++ source of PyTorch (c10::cuda::CUDACachingAllocator).  A number
such as (1.5) in a comment, or "section 1.5", is a section of docs/concepts/semantics.md.

Read in this order: constants, releases (differences between releases), options, config, block,
pool, find_split_merge (blocks and segments), allocator (the calls of torch.cuda), cache_miss
(attempts to serve a request if no free block fits, and the error's text), reclaim, private_pools.
No module reads a clock, a file, the environment or a random source, and none prints.
"""

from allocsim.core.allocator import CachingAllocator
from allocsim.core.arena import AddressEvent, AddressEventKind, Arena
from allocsim.core.block import Block
from allocsim.core.columns import Column, step_rows
from allocsim.core.config import NO_DIVISIONS, AllocatorConfig, RoundedSizes
from allocsim.core.constants import (
    ADDRESS_CHUNK,
    DRIVER_RANGES,
    IS_COMPILED,
    LARGE_BUFFER,
    MAX_REQUEST,
    MIN_BLOCK_SIZE,
    MIN_LARGE_ALLOC,
    N_ROUNDUP_INTERVALS,
    PAGE,
    ROUND_LARGE,
    ROUNDUP_FIRST_BIT,
    SMALL_BUFFER,
    SMALL_SIZE,
    UNLIMITED,
    UNLIMITED_DEVICE,
)
from allocsim.core.device import ADDRESS_POLICIES, Device
from allocsim.core.fast_path import (
    BRIEF,
    FREE,
    FREE_COMPLETED,
    FREE_REQUESTED,
    MALLOC,
    StepRow,
)
from allocsim.core.hash_order import HashOrder, pool_hash, stream_hash
from allocsim.core.inspection import (
    allocated_block,
    finds_free_block,
    fingerprint,
    free_blocks,
    garbage,
    handle_sizes,
    helping_pools,
    largest_request,
    mapped_for,
    pool_of_requests,
    returnable_bytes,
    returnable_pools,
    served_once_free,
    small_places,
    would_serve,
)
from allocsim.core.journal import (
    SHORT,
    Folder,
    GroupMoves,
    Journal,
    Moves,
    decode_long,
    decode_short,
    decode_wait,
    fold_records,
)
from allocsim.core.option_string import BadOptionError
from allocsim.core.option_string import parse as parse_conf
from allocsim.core.options import OPTIONS, Role
from allocsim.core.pending import RequestedFree
from allocsim.core.releases import (
    NEWEST,
    RELEASES,
    FreeBlockOrder,
    HostStatNames,
    Release,
    find_release,
)
from allocsim.core.replay_port import ReplayAllocator
from allocsim.core.snapshot import TraceEntry, Witnessed, Work
from allocsim.core.stats import SavedBytes, Stat

__all__ = [
    "ADDRESS_CHUNK", "ADDRESS_POLICIES", "AddressEvent", "AddressEventKind", "Arena",
    "AllocatorConfig", "BRIEF", "BadOptionError", "Block", "CachingAllocator", "ReplayAllocator",
    "Column", "DRIVER_RANGES", "Device", "FREE", "FREE_COMPLETED", "FREE_REQUESTED", "Folder",
    "FreeBlockOrder", "GroupMoves", "HashOrder", "HostStatNames", "IS_COMPILED", "Journal",
    "LARGE_BUFFER", "MALLOC", "MAX_REQUEST", "MIN_BLOCK_SIZE", "MIN_LARGE_ALLOC", "SavedBytes",
    "Moves", "NEWEST", "NO_DIVISIONS", "N_ROUNDUP_INTERVALS", "OPTIONS", "PAGE", "StepRow",
    "RELEASES", "ROUNDUP_FIRST_BIT", "ROUND_LARGE", "Release", "Role", "RoundedSizes", "SHORT",
    "SMALL_BUFFER", "SMALL_SIZE", "RequestedFree", "Stat", "TraceEntry", "UNLIMITED",
    "UNLIMITED_DEVICE", "Witnessed", "Work", "allocated_block", "decode_long", "decode_short",
    "decode_wait", "fingerprint", "find_release", "fold_records", "free_blocks", "garbage",
    "handle_sizes", "helping_pools", "finds_free_block", "largest_request", "mapped_for",
    "parse_conf", "pool_hash", "pool_of_requests", "returnable_bytes", "returnable_pools",
    "served_once_free", "small_places", "step_rows", "stream_hash", "would_serve",
]  # fmt: skip
