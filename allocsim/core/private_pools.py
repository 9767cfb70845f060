"""Private pools of CUDA graphs and MemPools, and the scopes that send requests to them.

`begin_allocate_to_pool` opens a scope, and creates the pool with a use count of 1 or increments the
count.  `end_allocate_to_pool` closes the scope.  `release_pool` decrements the count.  At 0 the
pool is freeable: its cached memory may be released, and the pool is removed together with its last
segment.  Source: semantics 5.1, 5.2, 12.2.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from allocsim.core.find_split_merge import Heap
from allocsim.core.hash_order import HashOrder, pool_hash
from allocsim.core.pool import PrivatePool
from allocsim.errors import UndefinedBehaviorError, UpstreamAssertionError
from allocsim.state import PoolId


@dataclass(frozen=True, slots=True)
class Scope:
    """Time between begin_allocate_to_pool and end_allocate_to_pool.

    id: private pool that serves the requests made in this time.
    stream: the only stream whose requests the pool serves (PyTorch up to 2.2); None for all.
    """

    id: PoolId
    stream: int | None


class PrivatePools:
    """Private pools of one device.

    pools: dictionary from pool id to private pool.
    freeable: part of `pools`: pools with a use count of 0 that still have segments.
    scopes: open scopes, oldest first.
    no_split: ids of pools whose blocks are not split.
    use_on_oom: ids of pools that serve requests of the default pool when the device is full.
    """

    __slots__ = ("_heap", "pools", "freeable", "scopes", "no_split", "use_on_oom")

    def __init__(self, heap: Heap) -> None:
        self._heap = heap
        self.pools: dict[PoolId, PrivatePool] = {}
        self.freeable: HashOrder[PoolId, PrivatePool] = HashOrder(pool_hash)
        self.scopes: list[Scope] = []
        self.no_split: set[PoolId] = set()
        self.use_on_oom: HashOrder[PoolId, None] = HashOrder(pool_hash)

    def begin_allocate_to_pool(self, pool_id: PoolId, stream: int | None) -> None:
        # Upstream increments the count before it asserts.
        self._create_or_incref_pool(pool_id)
        if any(scope.id == pool_id for scope in self.scopes):
            raise UpstreamAssertionError(
                f"pool {pool_id} is begun while a scope of it is open; its use count has grown"
            )
        # Up to PyTorch 2.2, a capture sends only requests of the capturing stream to the pool.
        by_stream = self._heap.release.scope_by_stream
        self.scopes.append(Scope(pool_id, (stream or 0) if by_stream else None))

    def _create_or_incref_pool(self, pool_id: PoolId) -> PrivatePool:
        pool = self.pools.get(pool_id)
        if pool is None:
            pool = self.pools[pool_id] = self._heap.new_private_pool(pool_id)
        elif pool.use_count == 0:
            raise UpstreamAssertionError(f"pool {pool_id} is used again after its last release")
        else:
            pool.use_count += 1
        return pool

    def end_allocate_to_pool(self, pool_id: PoolId) -> None:
        for scope in self.scopes:
            if scope.id == pool_id:
                self.scopes.remove(scope)
                return
        raise UpstreamAssertionError(f"pool {pool_id} is ended, but no scope of it is open")

    def release_pool(self, pool_id: PoolId) -> None:
        pool = self.pools.get(pool_id)
        if pool is None or pool.use_count == 0:
            raise UpstreamAssertionError(f"pool {pool_id} is released, but nothing uses it")
        pool.use_count -= 1
        if pool.use_count == 0:
            self.freeable[pool_id] = pool
            if self._heap.release.release_forgets_no_split:
                self.no_split.discard(pool_id)

    @property
    def in_capture(self) -> bool:
        """True if a scope is open and this version of PyTorch treats it as a graph capture.

        Source: semantics 5.4.
        """
        return bool(self.scopes) and self._heap.release.scope_is_capture

    def get_pool(self, stream: int) -> PrivatePool | None:
        """Return the private pool that serves requests of `stream`; None for the default pools."""
        accepting = [s for s in self.scopes if s.stream is None or s.stream == stream]
        if not accepting:
            return None
        # Up to PyTorch 2.9 the oldest open scope decides, later the newest.
        chosen = accepting[-1 if self._heap.release.newest_scope_wins else 0].id
        if chosen not in self.pools:
            raise UpstreamAssertionError(f"the scope of pool {chosen} outlived the pool")
        return self.pools[chosen]

    def fast_pool(self) -> PrivatePool | None:
        """Return the open scope's private pool; None if the loop of fast_path.py cannot use it."""
        if self._heap.release.scope_by_stream:
            return None
        chosen = self.scopes[-1 if self._heap.release.newest_scope_wins else 0].id
        return None if chosen in self.no_split else self.pools.get(chosen)

    def overflow_pools(self) -> Iterator[PrivatePool]:
        """Yield the pools marked use_on_oom, in the order of upstream's hash table.

        As in PyTorch, a pool stays marked after its use count reaches 0.  If it was then removed,
        this method creates it again; if it still has segments, it raises UpstreamAssertionError.
        """
        for pool_id in self.use_on_oom:
            # Upstream increments and decrements the use count around each search.
            pool = self._create_or_incref_pool(pool_id)
            self.release_pool(pool_id)
            yield pool

    def forget_if_empty(self, pool: PrivatePool) -> None:
        if pool.segment_count != 0:
            return
        # The count may reach 0 too early, because mapping and unmapping need not balance (5.1).
        active = self._heap.active
        if any(block.pool.owner is pool for block in active) or pool.small or pool.large:
            raise UndefinedBehaviorError(
                f"the segment count of pool {pool.id} reached 0 while it holds memory; PyTorch "
                "forgets the pool with its blocks"
            )
        del self.pools[pool.id]
        del self.freeable[pool.id]
        self._heap.forget_private_pool(pool)

    def free_bytes(self) -> int:
        return sum(
            block.size
            for pool in self.pools.values()
            for half in (pool.small, pool.large)
            for block in half
        )
