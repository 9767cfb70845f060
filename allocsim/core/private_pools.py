"""Private pools by id, the scopes that send requests to them, and when they end.

Rules: begin creates a pool with one use or adds one, end closes the scope and changes no count,
release takes one use away; at zero the pool is freeable, and it is forgotten once its last
segment has gone back.  Source: semantics 5.1, 5.2, 12.2.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from allocsim.core.hash_order import HashOrder, pool_hash
from allocsim.core.heap import Heap
from allocsim.core.pool import PrivatePool
from allocsim.errors import UndefinedBehaviorError, UpstreamAssertionError
from allocsim.state import PoolId

__all__ = ["PrivatePools"]


@dataclass(frozen=True, slots=True)
class Scope:
    """While it is open, requests go to pool `id`; up to 2.2 only those of one stream."""

    id: PoolId
    stream: int | None


class PrivatePools:
    """Every private pool of one device."""

    __slots__ = ("_heap", "pools", "freeable", "scopes", "no_split", "use_on_oom")

    def __init__(self, heap: Heap) -> None:
        self._heap = heap
        self.pools: dict[PoolId, PrivatePool] = {}
        self.freeable: HashOrder[PoolId, PrivatePool] = HashOrder(pool_hash)
        self.scopes: list[Scope] = []
        self.no_split: set[PoolId] = set()
        self.use_on_oom: HashOrder[PoolId, None] = HashOrder(pool_hash)

    def begin_allocate_to_pool(self, pool_id: PoolId, stream: int | None) -> None:
        """Create the pool or add a use, then open a scope."""
        self._create_or_incref_pool(pool_id)
        if any(scope.id == pool_id for scope in self.scopes):
            raise UpstreamAssertionError(
                f"pool {pool_id} is begun while a scope of it is open; its use count has grown"
            )
        by_stream = self._heap.release.scope_by_stream
        self.scopes.append(Scope(pool_id, (stream or 0) if by_stream else None))

    def _create_or_incref_pool(self, pool_id: PoolId) -> PrivatePool:
        """Create the pool or add a use."""
        pool = self.pools.get(pool_id)
        if pool is None:
            pool = self.pools[pool_id] = self._heap.new_private_pool(pool_id)
        elif pool.use_count == 0:
            raise UpstreamAssertionError(f"pool {pool_id} is used again after its last release")
        else:
            pool.use_count += 1
        return pool

    def end_allocate_to_pool(self, pool_id: PoolId) -> None:
        """Close the scope."""
        for scope in self.scopes:
            if scope.id == pool_id:
                self.scopes.remove(scope)
                return
        raise UpstreamAssertionError(f"pool {pool_id} is ended, but no scope of it is open")

    def release_pool(self, pool_id: PoolId) -> None:
        """Take one use away; at zero the pool becomes freeable."""
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
        """Whether an open scope has the effects of a graph capture (5.4)."""
        return bool(self.scopes) and self._heap.release.scope_is_capture

    def get_pool(self, stream: int) -> PrivatePool | None:
        """The pool that a request of `stream` goes to; None: the default pools."""
        accepting = [s for s in self.scopes if s.stream is None or s.stream == stream]
        if not accepting:
            return None
        chosen = accepting[-1 if self._heap.release.newest_scope_wins else 0].id
        if chosen not in self.pools:
            raise UpstreamAssertionError(f"the scope of pool {chosen} outlived the pool")
        return self.pools[chosen]

    def plain_pool(self) -> PrivatePool | None:
        """The pool that every request goes to and whose blocks are split; None: there is none."""
        if self._heap.release.scope_by_stream:
            return None
        chosen = self.scopes[-1 if self._heap.release.newest_scope_wins else 0].id
        return None if chosen in self.no_split else self.pools.get(chosen)

    def overflow_pools(self) -> Iterator[PrivatePool]:
        """The pools marked use_on_oom, in the order of their table, each in use when its turn is.

        The mark outlives the last release, as upstream's does: a marked pool that is forgotten
        is made anew here, one that is freeable asserts.
        """
        for pool_id in self.use_on_oom:
            pool = self._create_or_incref_pool(pool_id)
            self.release_pool(pool_id)
            yield pool

    def forget_if_empty(self, pool: PrivatePool) -> None:
        """Forget a freeable pool that has no segments left."""
        if pool.segment_count != 0:
            return
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
        """Bytes of free blocks in all private pools, as the out-of-memory text counts them."""
        return sum(
            block.size
            for pool in self.pools.values()
            for half in (pool.small, pool.large)
            for block in half
        )
