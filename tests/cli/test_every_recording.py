"""The results of ten commands on every available recording agree with the contents of the file.

The facts are counted from entries and segments, without the model. Recordings of other people,
which are not in the repository, are tested if they are available.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from allocsim import load
from allocsim.errors import RecordingError
from allocsim.recording import Action, Trace, start_state
from tests.recordings import phantom_recordings

Cli = Callable[..., Any]

HOME = Path(__file__).parents[2]
FILES = sorted([*phantom_recordings(), *(HOME.parent / "shared" / "recordings").glob("*.pickle")])
EXIT_CODES = {0, 2}
"""Success, and an input that the command cannot answer for."""

pytestmark = pytest.mark.slow


class Facts:
    """Facts of one device, from its entries and segments alone."""

    def __init__(self, trace: Trace) -> None:
        moves = {Action.SEGMENT_ALLOC: 1, Action.SEGMENT_MAP: 1}
        moves |= {Action.SEGMENT_FREE: -1, Action.SEGMENT_UNMAP: -1}
        signs = np.zeros(len(Action), dtype=np.int64)
        for action, sign in moves.items():
            signs[action] = sign
        held = sum(segment.total_size for segment in start_state(trace)) if len(trace) else 0
        reserved = held + np.cumsum(trace.size * signs[trace.action])
        self.entries = len(trace)
        self.peak_reserved = max(held, int(reserved.max(initial=0)))
        self.reserved = sum(segment.total_size for segment in trace.segments)
        self.allocated = sum(segment.allocated_size for segment in trace.segments)
        self.ooms = trace.count(Action.OOM)


def devices(path: Path) -> dict[int, Facts]:
    try:
        recording = load(path)
    except RecordingError:
        return {}
    return {trace.device: Facts(trace) for trace in recording.devices}


def documents(cli: Cli, path: Path, out: Path) -> Iterator[tuple[str, Any]]:
    """Yield the JSON of each command that can answer for the file."""
    for line in (
        "replay FILE --no-cure",
        "replay FILE --conf max_split_size_mb:128",
        "explain FILE",
        "risk FILE",
        "top FILE --at end",
        "top FILE --by category",
        "step FILE --at 0 --count 3",
        "tune FILE --try max_split_size_mb:128",
        f"plot memory FILE -o {out / 'memory.svg'}",
        f"report FILE -o {out / 'report.html'}",
    ):
        words = [str(path) if word == "FILE" else word for word in line.split()]
        is_drawn = words[0] in ("plot", "report")
        done = cli(*words, *([] if is_drawn else ["--json"]))
        assert done.code in EXIT_CODES, f"{line}: {done.code} {done.err}"
        assert "Traceback" not in done.err, line
        if done.code == 0 and not is_drawn:
            yield line.split(" FILE")[0] + line.split("FILE")[1], json.loads(done.out)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name.split(".npz")[0])
def test_commands_contradict_no_recording_in_the_tree(cli: Cli, path: Path, tmp_path: Path) -> None:
    facts = devices(path)
    for line, said in documents(cli, path, tmp_path):
        if line == "replay --no-cure":
            for device in said["devices"]:
                agrees_with_replay(device, facts[device["device"]])
        elif line == "explain":
            for device in said.get("devices", []):
                assert device["parting"] is None or facts[device["device"]].entries
            if "largest_request_bytes" in said:  # a state has no errors
                agrees_with_state(said, facts[said["device"]])
            else:
                failed = sum(fact.ooms for fact in facts.values())
                assert len(said["ooms"]) in (0, failed), line
        elif line == "risk":
            fact = facts[said["device"]]
            if said["parting"] is None:
                assert said["fits"] is (fact.ooms == 0) or said["ooms"], line
                near = said["tightest"]  # None if no request needed the driver
                assert near is None or near["reserved_bytes"] <= fact.peak_reserved, line
        elif line == "top --at end":
            assert said["allocated_bytes"] == facts[said["device"]].allocated, line
            assert sum(said["categories"].values()) == said["allocated_bytes"], line
        elif line == "top --by category":
            assert sum(row["bytes"] for row in said["rows"]) == said["allocated_bytes"], line
        elif line.startswith("tune") and said["is_proved"]:
            peaks = [facts[part["device"]].peak_reserved for part in said["baseline"]["parts"]]
            assert said["baseline"]["peak_reserved_bytes"] == max(peaks), line


def agrees_with_state(said: dict[str, Any], fact: Facts) -> None:
    """Assert that an explained state has the recorded memory; free segments may be released."""
    if said["refusal"] is not None:
        figures = said["refusal"]["figures"]
        assert figures["allocated_bytes"] == fact.allocated
        assert figures["reserved_bytes"] <= fact.reserved


def agrees_with_replay(device: dict[str, Any], fact: Facts) -> None:
    """Assert that a replay equal to the recording reports the numbers of the file."""
    assert device["entries"] == fact.entries
    if device["fidelity"]["is_exact"]:
        assert device["parting"] is None
        assert device["peak_reserved_bytes"] == fact.peak_reserved
        assert device["stats"]["reserved_bytes.all.current"] == fact.reserved
        assert device["stats"]["allocated_bytes.all.current"] == fact.allocated
        assert len(device["ooms"]) == fact.ooms
    else:
        assert device["parting"] is not None
