"""Private pools, which live while they are used or hold segments, and the scopes that select them.

Semantics 5.1 to 5.6.  A scope here stands for use_mem_pool without a capture.
"""

from __future__ import annotations

from allocsim.errors import ConfigError, UpstreamAssertionError
from allocsim.units import MIB
from tests.naive.block import Pool, PrivatePool
from tests.naive.events import release_deferred
from tests.naive.state import State

__all__ = ["begin", "end", "release", "pool_for"]


def begin(
    state: State,
    number: int,
    stream: int | None,
    *,
    no_split: bool = False,
    use_on_oom: bool = False,
) -> None:
    """Create the pool or add a use, then open a scope.

    Up to 2.2 a scope is for one stream; later None stands for all.
    """
    if state.minor <= 2 and stream is None:
        stream = 0
    if no_split and state.minor < 10:
        raise ConfigError(f"no_split needs PyTorch 2.10; this is 2.{state.minor}")
    if use_on_oom and state.minor < 8:
        raise ConfigError(f"use_on_oom needs PyTorch 2.8; this is 2.{state.minor}")
    hold(state, number)
    if number in dict(state.scopes):
        raise UpstreamAssertionError(f"semantics 5.1: a scope of pool (0, {number}) is open")
    state.scopes.append((number, stream))
    if no_split:
        state.no_split.add(number)
    if use_on_oom:
        state.use_on_oom.insert(number, None)


def hold(state: State, number: int) -> None:
    """Add one use of the pool."""
    if number not in state.private:
        owner = PrivatePool(number)
        state.private[number] = (owner, Pool(True, owner), Pool(False, owner))
        return
    owner = state.private[number][0]
    if owner.use_count == 0:
        raise UpstreamAssertionError(
            f"semantics 5.1: pool (0, {number}) was released and still holds memory"
        )
    owner.use_count += 1


def end(state: State, number: int) -> None:
    """Close the scope; the pool stays in use."""
    if number not in dict(state.scopes):
        raise UpstreamAssertionError(f"no scope of pool (0, {number}) is open")
    state.scopes = [scope for scope in state.scopes if scope[0] != number]
    if state.options.switches["graph_capture_record_stream_reuse"]:
        mine = [b for b in state.deferred if b.pool.number == number]
        release_deferred(state, mine)


def release(state: State, number: int) -> None:
    """Remove one use; a pool without uses is freeable.

    Marks belong to the id: no_split is cleared from 2.14 on only, use_on_oom never (5.1).
    """
    if number not in state.private or state.private[number][0].use_count == 0:
        raise UpstreamAssertionError(f"pool (0, {number}) is released but has no user")
    owner = state.private[number][0]
    owner.use_count -= 1
    if owner.use_count == 0:
        if state.minor >= 14:
            state.no_split.discard(number)
        state.freeable.insert(number, None)


def pool_for(state: State, stream: int, size: int) -> Pool:
    """Return the pool for a rounded request (semantics 1.3, 5.2)."""
    small, large = state.small, state.large
    accepting = [number for number, only in state.scopes if only in (None, stream)]
    if accepting:
        number = accepting[-1] if state.minor >= 10 else accepting[0]
        if number not in state.private:
            raise UpstreamAssertionError(f"the scope's pool (0, {number}) was released")
        _, small, large = state.private[number]
    return small if size <= MIB else large
