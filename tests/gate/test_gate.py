"""Memory checks: figures independent of earlier runs, and the lines that grew."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from allocsim import Budget, CachingAllocator, gate, load, measured
from allocsim.analysis.gate import Measured, read_baseline, write_baseline
from allocsim.errors import ConfigError, RecordingError
from allocsim.results import Recording
from allocsim.units import GIB, MIB

TRACES = Path(__file__).parents[2] / "traces"
Program = Callable[["Gpu"], None]


class Gpu:
    """Model with a line of code for each request, and marks of steps.

    left: blocks that a program leaves allocated, for the next one to free.
    """

    def __init__(self) -> None:
        self.allocator = CachingAllocator("64GiB", record_history=True)
        self.left: list[int] = []
        self._lines: list[str] = []
        self._marks: list[dict[str, object]] = []

    def ask(self, size: int, line: str = "net.py:1 forward", stream: int = 0) -> int:
        self._lines.append(line)
        ptr = self.allocator.malloc(size, stream)
        assert ptr is not None
        return ptr

    def free(self, ptr: int) -> None:
        self.allocator.free(ptr)

    def step(self, number: int) -> None:
        self._mark("step", number)

    def set_allocator_settings(self, conf: str) -> None:
        self._mark("_set_allocator_settings", conf)
        self.allocator.set_allocator_settings(conf)

    def _mark(self, kind: str, value: object) -> None:
        entry = len(self.allocator.history)
        self._marks.append({"device": 0, "entry": entry, "kind": kind, "value": value})

    def save(self, path: Path) -> Recording:
        snapshot = self.allocator.snapshot()
        asked = [row for row in snapshot["device_traces"][0] if row["action"] == "alloc"]
        for row, line in zip(asked, self._lines, strict=True):
            place, name = line.split()
            file, number = place.split(":")
            row["frames"] = [{"filename": f"/home/me/{file}", "line": int(number), "name": name}]
        snapshot["allocsim"] = {"marks": self._marks, "conf_at_start": ""}
        path.write_bytes(pickle.dumps(snapshot, protocol=4))
        return load(path)


def serves(gpu: Gpu, *, more: int = 0) -> None:
    """Run the measured request of a server, with sizes that no other request has."""
    kept = [gpu.ask(size * MIB + 700, "serve.py:10 prefill") for size in (3, 30, 11, 70)]
    for size in (200, 90, 5):
        gpu.free(gpu.ask(size * MIB + more, "serve.py:20 attend"))
    reply = gpu.ask(150 * MIB + more, "serve.py:30 reply")
    for ptr in kept:
        gpu.free(ptr)
    gpu.free(reply)


def nothing(gpu: Gpu) -> None:
    """Run nothing before the measured request."""
    del gpu


def short_ones(gpu: Gpu) -> None:
    for size in (1, 2, 3, 40, 2, 1):
        gpu.free(gpu.ask(size * MIB))


def a_long_one(gpu: Gpu) -> None:
    rows = [gpu.ask(size * MIB) for size in (500, 37, 900, 61, 12)]
    for ptr in rows[::-2] + rows[3::-2]:
        gpu.free(ptr)


def one_that_leaves_something(gpu: Gpu) -> None:
    """Leave a block that is freed during the next program."""
    a_long_one(gpu)
    gpu.left = [gpu.ask(45 * MIB), gpu.ask(300 * 1024)]


def one_that_empties_the_cache(gpu: Gpu) -> None:
    a_long_one(gpu)
    short_ones(gpu)
    gpu.allocator.empty_cache()
    gpu.free(gpu.ask(7 * MIB))


WARM_UPS = (nothing, short_ones, a_long_one, one_that_leaves_something, one_that_empties_the_cache)


def after(warm_up: Program, path: Path, *, more: int = 0) -> Recording:
    gpu = Gpu()
    for size in (100, 60, 1, 0.3):
        gpu.ask(int(size * MIB), "net.py:5 weights")
    warm_up(gpu)
    gpu.step(2)
    if gpu.left:
        gpu.free(gpu.left.pop())
    serves(gpu, more=more)
    return gpu.save(path)


@pytest.mark.parametrize("counts_held", [True, False])
def test_gate_measures_the_same_peak_after_any_warm_up(tmp_path: Path, counts_held: bool) -> None:
    found, ended_with = set(), set()
    for warm_up in WARM_UPS:
        recording = after(warm_up, tmp_path / "run.pickle")
        (trace,) = recording.devices
        ended_with.add(sum(segment.total_size for segment in trace.segments))
        run = measured(recording, at=("step", "2"), counts_held=counts_held)
        if warm_up is one_that_leaves_something:
            # One of the remaining blocks is never freed, so it belongs to the next program.
            assert run.held.left_bytes == 300 * 1024
            assert run.held.kept_bytes == 206 * MIB + int(0.3 * MIB)
            if counts_held:
                continue
        found.add((run.peak_reserved_bytes, run.peak_allocated_bytes, run.driver_calls))
    assert len(ended_with) >= 3, "by itself the same request ends with other figures"
    assert len(found) == 1


def test_part_from_the_first_request_equals_the_recorded_run(tmp_path: Path) -> None:
    """If nothing ran before, an empty allocator equals the recorded one."""
    recording = load(TRACES / "sized" / "batch2.npz.gz")
    peaks = json.loads((TRACES / "sized" / "peaks.json").read_text())["batch2"]
    run = measured(recording)
    assert run.peak_reserved_bytes == peaks["reserved_bytes.all.peak"]
    assert run.peak_allocated_bytes == peaks["allocated_bytes.all.peak"]
    assert sum(run.owners.values()) == run.peak_requested_bytes
    assert run.held.kept_bytes == run.held.left_bytes == 0
    del tmp_path


@cache
def training(name: str, step: str) -> Measured:
    return measured(load(TRACES / "sized" / f"{name}.npz.gz"), at=("step", step))


def test_later_steps_have_equal_memory() -> None:
    """Steps are inferred from stacks; weights and optimizer state count, old gradients do not."""
    second, third = training("batch2", "2"), training("batch2", "3")
    assert second.peak_reserved_bytes == third.peak_reserved_bytes
    assert second.held.kept_bytes > 400 * MIB < second.held.left_bytes + 200 * MIB
    assert sum(second.owners.values()) == second.peak_requested_bytes
    assert not any("before" in line for line in second.owners), "weights have lines, too"


def test_gate_with_one_percent_tolerance_fails_at_three_and_names_the_line(tmp_path: Path) -> None:
    base, now = tmp_path / "baseline.json", tmp_path / "now.pickle"
    write_baseline(base, measured(after(a_long_one, now), at=("step", "2")))
    baseline = read_baseline(base)
    changed = measured(after(short_ones, now, more=14 * MIB), at=("step", "2"))
    grown = changed.peak_requested_bytes / baseline.peak_requested_bytes
    assert 1.02 < grown < 1.05
    found = gate(changed, baseline=baseline, tolerance=0.01)
    assert not found.passed
    assert [(each.owner, each.bytes) for each in found.grown] == [("serve.py:20 attend", 14 * MIB)]
    assert gate(changed, baseline=baseline, tolerance=0.06).passed
    same = measured(after(one_that_empties_the_cache, now), at=("step", "2"))
    assert gate(same, baseline=baseline, tolerance=0).passed


def test_a_baseline_is_the_same_text_for_the_same_run(tmp_path: Path) -> None:
    texts = set()
    for warm_up in (nothing, a_long_one):
        recording = after(warm_up, tmp_path / f"{warm_up.__name__}.pickle")
        write_baseline(tmp_path / "b.json", measured(recording, at=("step", "2")))
        texts.add((tmp_path / "b.json").read_text())
    (text,) = texts
    document = json.loads(text)
    assert list(document["owners"]) == sorted(document["owners"])
    assert str(tmp_path) not in text
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize(
    ("budget", "passed"),
    [
        (Budget(max_reserved=4 * GIB), True),
        (Budget(max_reserved=3 * GIB), False),
        (Budget(max_allocated=4 * GIB, max_requested=MIB), False),
        (Budget(max_driver_calls=71), True),
        (Budget(max_driver_calls=70), False),
        (Budget(max_fragmentation=0.11), True),
        (Budget(max_fragmentation=0.1), False),
    ],
)
def test_gate_checks_each_limit_and_passes_an_equal_value(budget: Budget, passed: bool) -> None:
    assert gate(training("batch2", "2"), budget).passed is passed
    exact = Budget(max_reserved=training("batch2", "2").peak_reserved_bytes)
    assert gate(training("batch2", "2"), exact).passed


def test_lines_that_moved_are_the_same_lines(tmp_path: Path) -> None:
    runs: list[Measured] = []
    for line in ("net.py:3 f", "net.py:8 f"):
        gpu = Gpu()
        gpu.ask(4 * MIB, line)
        gpu.ask(MIB, "new.py:1 g" if runs else "old.py:1 g")
        runs.append(measured(gpu.save(tmp_path / "run.pickle")))
    write_baseline(tmp_path / "b.json", runs[0])
    found = gate(runs[1], baseline=read_baseline(tmp_path / "b.json"))
    result = {(each.was, each.owner): each.status for each in found.growth}
    assert result == {
        ("net.py:3 f", "net.py:8 f"): "same",
        ("", "new.py:1 g"): "new",
        ("old.py:1 g", ""): "gone",
    }


def test_a_part_may_begin_at_a_text_or_an_annotation_of_the_programs_own(tmp_path: Path) -> None:
    gpu = Gpu()
    for size in (300, 20, 10):
        gpu.free(gpu.ask(size * MIB))
    path = tmp_path / "run.pickle"
    gpu.save(path)
    snapshot = pickle.loads(path.read_bytes())
    (trace,) = snapshot["device_traces"]
    asks = [row for row in trace if row["action"] == "alloc"]
    asks[1]["user_metadata"] = "prefill"
    for clock, row in enumerate(trace):
        row["time_us"] = 1000 + clock
    starts = {"name": "decode", "stage": "START", "device": 0, "time_us": asks[2]["time_us"]}
    ends = starts | {"name": "before", "stage": "END", "time_us": 1000}
    snapshot["external_annotations"] = [ends, starts]
    path.write_bytes(pickle.dumps(snapshot, protocol=4))
    recording = load(path)
    peaks = {
        which: measured(recording, at=("mark", which)).peak_allocated_bytes
        for which in ("prefill", "decode")
    }
    assert peaks == {"prefill": 20 * MIB, "decode": 10 * MIB}
    with pytest.raises(RecordingError, match="there is no mark before; it has decode, prefill"):
        measured(recording, at=("mark", "before"))


def test_a_part_without_requests_is_refused(tmp_path: Path) -> None:
    gpu = Gpu()
    ptr = gpu.ask(30 * MIB)
    gpu.step(2)
    gpu.free(ptr)
    with pytest.raises(RecordingError, match="has no requests after step 2"):
        measured(gpu.save(tmp_path / "run.pickle"), at=("step", "2"))


def test_part_that_begins_in_a_private_pool_requests_from_the_pool(tmp_path: Path) -> None:
    """Memory cached by a private pool does not serve the default pool."""
    gpu = Gpu()
    gpu.ask(30 * MIB)
    gpu.allocator.begin_allocate_to_pool(1)
    gpu.ask(30 * MIB, "graph.py:1 capture")
    gpu.step(2)
    gpu.free(gpu.ask(40 * MIB, "graph.py:2 capture"))
    gpu.allocator.end_allocate_to_pool(1)
    gpu.ask(40 * MIB)
    run = measured(gpu.save(tmp_path / "run.pickle"), at=("step", "2"))
    assert run.held.kept_bytes == 60 * MIB
    assert run.peak_reserved_bytes == 140 * MIB


def test_settings_changed_before_the_part_stay_in_force(tmp_path: Path) -> None:
    gpu = Gpu()
    conf = "roundup_power2_divisions:2"
    gpu.free(gpu.ask(5 * MIB))
    gpu.set_allocator_settings(conf)
    gpu.step(2)
    gpu.ask(33 * MIB)
    run = measured(gpu.save(tmp_path / "run.pickle"), at=("step", "2"))
    assert run.peak_allocated_bytes == 48 * MIB


@pytest.mark.parametrize(
    ("at", "sentence"),
    [
        (("step", "9"), "there is no step 9; it has 1, 2, 3"),
        (("mark", "prefill"), "there is no mark prefill; it has none"),
        (("phase", "forward"), "there is no phase forward; it has none"),
        (("entry", "99999"), "there is no entry 99999; expected 0 to"),
        (("entry", "-1"), "there is no entry -1"),
    ],
)
def test_gate_names_a_missing_place(at: tuple[str, str], sentence: str) -> None:
    with pytest.raises(RecordingError, match=sentence):
        measured(load(TRACES / "sized" / "batch2.npz.gz"), at=at)


def document_of(tmp_path: Path) -> dict[str, Any]:
    write_baseline(tmp_path / "b.json", training("batch2", "2"))
    document: dict[str, Any] = json.loads((tmp_path / "b.json").read_text())
    return document


@pytest.mark.parametrize(
    "change",
    [
        {"allocsim_baseline": 2},
        {"peak_reserved_bytes": -1},
        {"peak_reserved_bytes": "1"},
        {"owners": [1]},
        {"owners": {"x": None}},
        {"from": "yesterday"},
        {"from": 3},
        {"conf": None},
    ],
)
def test_gate_refuses_a_file_that_is_no_baseline(tmp_path: Path, change: dict[str, Any]) -> None:
    (tmp_path / "b.json").write_text(json.dumps(document_of(tmp_path) | change))
    with pytest.raises(ConfigError, match=r"b\.json is not a baseline; --update writes one"):
        read_baseline(tmp_path / "b.json")


@pytest.mark.parametrize("text", ["", "[]", "null", "[" * 100_000, "\udcff"])
def test_gate_refuses_a_baseline_that_is_no_json(tmp_path: Path, text: str) -> None:
    (tmp_path / "b.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ConfigError, match="is not a baseline"):
        read_baseline(tmp_path / "b.json")


def test_gate_refuses_a_baseline_of_another_part_or_settings(tmp_path: Path) -> None:
    document_of(tmp_path)
    baseline = read_baseline(tmp_path / "b.json")
    for other, sentence in (
        ({"at": None}, "measures the run from step 2 on; expected from the beginning"),
        ({"counts_held": False}, "counts memory held before"),
        ({"conf": "expandable_segments:True"}, "has the settings ''"),
    ):
        recording = load(TRACES / "sized" / "batch2.npz.gz")
        asked: dict[str, Any] = {"at": ("step", "2")} | other
        with pytest.raises(ConfigError, match=sentence):
            gate(measured(recording, **asked), baseline=baseline)
    with pytest.raises(ConfigError, match="neither a limit nor a baseline"):
        gate(training("batch2", "2"))
    with pytest.raises(ConfigError, match=r"tolerance -0\.1 is negative"):
        gate(training("batch2", "2"), baseline=baseline, tolerance=-0.1)
