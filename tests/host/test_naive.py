"""The model and the naive model agree on random scripts of pinned memory, release by release."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from allocsim.core import RELEASES, Release
from allocsim.errors import UndefinedBehaviorError
from allocsim.verify import Script
from allocsim.verify.host_generator import make_host_script
from allocsim.verify.player import HOST_MEMORY, play_host
from allocsim.verify.script import ModelAnswer
from tests.naive.host import Block, HostOutOfMemory, NaiveHost, Refused

MODELLED = [release for release in RELEASES.values() if release.models_host]


class NaivePlayer:
    """Naive model that runs a script, with results in the form of the model's."""

    def __init__(self, script: Script, release: Release) -> None:
        self.outcome = ModelAnswer()
        self.naive = NaiveHost(script.conf, int(release.version.split(".")[1]), HOST_MEMORY)
        self.live: dict[int, Block] = {}
        self.handles = script.stream_handles()
        for at, op in enumerate(script.ops):
            try:
                self.step(at, list(op))
            except Refused as error:
                self.outcome.stopped = (at, error)
                break
        self.read(len(script.ops))
        if "host_traces" in release.snapshot_keys:
            self.outcome.trace = [list(entry) for entry in self.naive.trace]

    def step(self, at: int, op: list[Any]) -> None:
        letter, *rest = op
        if letter == "P":
            self.capture(*rest)
            return
        calls: dict[str, Callable[..., object]] = {
            "a": self.allocate,
            "f": lambda name: self.naive.free(self.live.pop(name)) if name in self.live else None,
            "r": self.record,
            "s": lambda stream: self.naive.synchronize(self.handles[stream]),
            "S": self.naive.synchronize,
            "q": lambda: self.read(at),
            "c": self.naive.set,
            "e": self.naive.empty_cache,
            "k": self.naive.reset_peak,
            "K": self.naive.reset_sums,
        }
        calls[letter](*rest)

    def allocate(self, name: int, size: int) -> None:
        try:
            block = self.naive.malloc(size)
        except HostOutOfMemory:
            block = None
        self.outcome.addresses.append(None if block is None else block.number)
        if block is not None:
            self.live[name] = block

    def record(self, name: int, stream: int) -> None:
        if name in self.live:
            self.naive.record(self.live[name], self.handles[stream])

    def capture(self, what: str, pool: int, stream: int = 0) -> None:
        if what == "b":
            self.naive.begin(pool, self.handles[stream])
        elif what == "e":
            self.naive.end()
        else:
            self.naive.release(pool)

    def read(self, at: int) -> None:
        stats = self.naive.statistics()
        self.outcome.stats |= {f"{at:06}.{key}": value for key, value in stats.items()}


@pytest.mark.parametrize("release", MODELLED, ids=lambda release: release.version)
def test_model_equals_naive_model(release: Release) -> None:
    n_ops = 0
    for seed in range(1_000_000, 1_000_015):
        script = make_host_script(seed, release)
        script = script.with_ops(script.ops[:250])
        ours, theirs = play_host(script, release.version), NaivePlayer(script, release).outcome
        if ours.stopped is not None:
            assert isinstance(ours.stopped[1], UndefinedBehaviorError)
            assert theirs.stopped is not None
            assert theirs.stopped[0] == ours.stopped[0]
        else:
            assert theirs.stopped is None
            assert theirs.stats == ours.stats, seed
        assert theirs.addresses == ours.addresses, seed
        assert theirs.trace[: len(ours.trace)] == ours.trace, seed
        n_ops += len(script.ops)
    assert n_ops > 1_500
