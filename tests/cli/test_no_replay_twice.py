"""No command replays the same setting on the same device memory twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from allocsim.simulation import Drive

from .conftest import Done

Cli = Callable[..., Done]
Replays = Counter[tuple[object, ...]]
OOM = "gpt2-ragged-oom-torch2.15.pickle.gz"
COMMANDS = (
    "replay FILE --cure",
    "explain FILE",
    "risk FILE",
    "report FILE -o out.html",
    "tune FILE",
)
SLACK = "recordings/llama_checkpointing-default-torch2.15.npz.gz"


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Replays:
    """Count the replays of each (settings, limit, device memory)."""
    counts: Replays = Counter()
    run = Drive.run

    def counted(drive: Drive, *arguments: Any) -> None:
        gpu = drive.allocator
        counts[str(gpu.config), gpu.memory_limit, gpu.device.total, gpu.device_index] += 1
        run(drive, *arguments)

    monkeypatch.setattr(Drive, "run", counted)
    monkeypatch.chdir(tmp_path)
    return counts


COMMANDS = ("replay FILE --cure", "explain FILE", "risk FILE", "report FILE -o OUT", "tune FILE")
QUICK = [(each, OOM) for each in COMMANDS if each.split()[0] not in ("risk", "tune")]
REST = [(each, name) for each in COMMANDS for name in (OOM, SLACK) if (each, name) not in QUICK]


@pytest.mark.parametrize(
    ("command", "name"),
    [*QUICK, *(pytest.param(*each, marks=pytest.mark.slow) for each in REST)],
)
def test_commands_replay_each_setting_once_per_device(
    cli: Cli, traces: Path, replays: Replays, command: str, name: str
) -> None:
    words = [traces / name if word == "FILE" else word for word in command.split()]
    done = cli(*words)
    assert done.code == 0, done.err
    assert replays
    again = {key: count for key, count in replays.items() if count > 1}
    if command.startswith("tune"):
        # The search may have run in other processes, so the recorded run is replayed here again for
        # the owners.
        assert list(again.values()) == [2]
        assert next(iter(again))[0] == ""
    else:
        assert again == {}
