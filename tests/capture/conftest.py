"""Fixtures that give each test a fresh recorder, as in a new process."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import pytest

from allocsim import capture
from allocsim.capture import files, recorder, session
from tests.capture.pretend import Pretend

RANKS = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    own = recorder.Recorder()
    for module in (files, recorder, session):
        monkeypatch.setattr(module, "RECORDER", own)
    monkeypatch.setattr(recorder, "_said", set())
    monkeypatch.setattr(capture, "_INSTALLED", [])
    for name in RANKS:
        monkeypatch.delenv(name, raising=False)
    yield
    for active in tuple(session._ACTIVE):
        active.stop()


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[[Pretend], Pretend]:
    """Return a function that installs a fake torch as the imported one."""

    def install(torch: Pretend) -> Pretend:
        monkeypatch.setitem(sys.modules, "torch", torch)
        return torch

    return install


@pytest.fixture
def torch(use: Callable[[Pretend], Pretend]) -> Pretend:
    return use(Pretend())
