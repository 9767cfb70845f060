"""A device whose driver lends the host's memory: what spills, when, and when nothing does."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from allocsim import CachingAllocator, replay
from allocsim.engine import Spill
from allocsim.errors import ConfigError
from allocsim.trace import Recording
from allocsim.units import MIB

Recorded = Callable[..., Recording]


def a_step(gpu: CachingAllocator) -> None:
    """100 MiB that stay, and 200 that come and go with the cache."""
    gpu.malloc(100 * MIB)
    big = gpu.malloc(200 * MIB)
    assert big is not None
    gpu.free(big)
    gpu.empty_cache()


def test_what_the_card_has_not_lies_in_the_hosts_memory(recorded: Recorded) -> None:
    """From the second request on, and no longer than until the cache is emptied."""
    run = replay(recorded(a_step), device_memory="256MiB", host_spill="1GiB").devices[0]
    assert not run.ooms
    assert run.fidelity is None
    second = int(run.timeline.entry[np.argmax(run.timeline.reserved > 256 * MIB)])
    assert run.spill == Spill(1024 * MIB, 44 * MIB, second, second, 0)


def test_where_the_card_has_room_nothing_spills(recorded: Recorded) -> None:
    run = replay(recorded(a_step), device_memory="512MiB", host_spill="1GiB").devices[0]
    assert run.spill == Spill(1024 * MIB, 0, None, -1, 0)


def test_more_than_is_lent_is_refused(recorded: Recorded) -> None:
    run = replay(recorded(a_step), device_memory="128MiB", host_spill="64MiB").devices[0]
    assert [oom.tried_bytes for oom in run.ooms] == [200 * MIB]


def test_without_a_loan_there_is_no_word_of_it(recorded: Recorded) -> None:
    recording = recorded(a_step)
    run = replay(recording, device_memory="128MiB").devices[0]
    assert run.spill is None
    assert run.ooms


def test_beside_a_device_of_unknown_size_nothing_can_be_lent(recorded: Recorded) -> None:
    with pytest.raises(ConfigError, match="whose size is not recorded; name it"):
        replay(recorded(a_step), host_spill="1GiB")
