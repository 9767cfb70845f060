"""Captures leave the program unaffected, and their files replay exactly."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import pickle
import re
import subprocess
import sys
import tempfile
import threading
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from allocsim import CachingHostAllocator, OutOfMemoryError, replay, top
from allocsim.capture import Capture, capture, files
from allocsim.recording import Mark, MarkKind, Recording, load, load_host
from allocsim.units import KIB, MIB
from tests.capture.pretend import Pretend


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def whole(path: Path) -> Recording:
    """Return the recording in a file, which a replay must reproduce."""
    recording = load(path)
    run = replay(recording).devices[0]
    assert run.fidelity is not None and run.fidelity.is_exact, run.fidelity
    return recording


def captured(recording: Recording) -> str:
    assert recording.provenance is not None
    return recording.provenance.captured


def train(torch: Pretend, recording: Capture, steps: int = 4) -> None:
    """Run steps that each keep 20 of 64 MiB."""
    for _ in range(steps):
        recording.step()
        torch.empty(20 * MIB)
        torch.empty(MIB)
        torch.drop()
        torch.cuda.empty_cache()


def test_import_of_capture_loads_only_the_standard_library() -> None:
    code = (
        "import sys; before = set(sys.modules); import allocsim.capture\n"
        "new = {name.split('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(new - set(sys.stdlib_module_names)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "['allocsim']\n"


def test_oom_is_captured_before_it_is_raised_unchanged(torch: Pretend, tmp_path: Path) -> None:
    there: list[str] = []

    def plain(recording: Any) -> None:
        recording.step()
        try:
            train(torch, recording)
        finally:
            there.extend(names(tmp_path) if tmp_path.exists() else [])

    with pytest.raises(OutOfMemoryError) as found, capture(tmp_path / "run.pickle") as recording:
        plain(recording)

    assert there == ["run-step5-oom.pickle"], "written before the exception left the function"
    frames = [frame.name for frame in traceback.extract_tb(found.value.__traceback__)]
    assert frames[1:4] == ["plain", "train", "empty"], "no frame of allocsim in the traceback"
    assert found.value.__cause__ is None and found.value.__context__ is None
    recording_ = whole(tmp_path / "run-step5-oom.pickle")
    made = recording_.provenance
    assert made is not None
    assert made.captured == "at an out-of-memory error of step 5"
    assert made.oom_text == str(found.value)
    assert (made.device_memory, made.device_name, made.release) == (64 * MIB, "Pretend", "2.15")


def test_capture_marks_are_at_the_entries_of_their_calls(torch: Pretend, tmp_path: Path) -> None:
    with capture(tmp_path / "run.pickle", on="exit") as recording:
        recording.step()
        recording.phase("forward")
        torch.empty(20 * MIB)  # entries 0 and 1: a segment and a block of it
        recording.phase("optimizer")
        torch.drop()  # 2 and 3
        torch.cuda.empty_cache()  # 4
        recording.step(7)
        torch.empty(MIB)
    recording_ = whole(tmp_path / "run-exit.pickle")
    assert recording_.devices[0].marks == (
        Mark(0, MarkKind.STEP, 1),
        Mark(0, MarkKind.PHASE, "forward"),
        Mark(2, MarkKind.PHASE, "optimizer"),
        Mark(4, MarkKind.EMPTY_CACHE),
        Mark(4, MarkKind.STEP, 7),  # segments that the cache released are not counted
    )
    assert captured(recording_) == "at the end"


def test_top_takes_steps_and_phases_from_the_marks(torch: Pretend, tmp_path: Path) -> None:
    """Without stacks, marks are the only source of steps and phases."""
    with capture(tmp_path / "run.pickle", on="exit") as recording:
        torch.empty(MIB)
        for number in (41, 42):
            recording.step(number)
            recording.phase("forward")
            torch.empty(20 * MIB)
            recording.phase("backward")
            torch.empty(2 * MIB)
            torch.drop()
            torch.drop()
    recording_ = load(tmp_path / "run-exit.pickle")
    found = top(recording_, at="end")
    assert (found.at.step, found.at.phase) == (42, "backward")
    assert top(recording_, at=0).at.step == 0, "before the first step"


def test_capture_file_opens_as_a_snapshot(torch: Pretend, tmp_path: Path) -> None:
    """The file has one additional key, and a pickle protocol that PyTorch's viewer reads."""
    with capture(tmp_path / "run.pickle", on="exit"):
        torch.empty(MIB)
        before = torch.cuda.memory._snapshot()
        # The snapshot itself is an entry.
        before["device_traces"] = torch.cuda.memory._snapshot()["device_traces"]
    data = (tmp_path / "run-exit.pickle").read_bytes()
    assert data[:2] == b"\x80\x04"
    snapshot = pickle.loads(data)
    del snapshot["allocsim"]
    assert [trace[:-1] for trace in snapshot.pop("device_traces")] == before.pop("device_traces")
    assert snapshot == before


def test_recording_begins_with_the_device_and_ends_with_the_capture(
    torch: Pretend, tmp_path: Path
) -> None:
    hook, call = sys.excepthook, torch._C._cuda_emptyCache
    with capture(tmp_path / "run.pickle", max_entries=500):
        assert torch.log == [], "the device stays uninitialised"
        torch.empty(MIB)
        assert sys.excepthook is not hook and torch._C._cuda_emptyCache is not call
    assert torch.log == [
        (("all",), {"context": "alloc", "stacks": "python", "max_entries": 500}),
        ((None,), {}),
    ]
    assert sys.excepthook is hook and torch._C._cuda_emptyCache is call
    assert names(tmp_path) == [], "no error, no file"


def test_capture_without_stacks_has_none(torch: Pretend, tmp_path: Path) -> None:
    with capture(tmp_path / "run.pickle", stacks=None):
        torch.empty(MIB)
    assert torch.log[0][1]["context"] is None


def with_pinned_memory(torch: Pretend) -> CachingHostAllocator:
    """Let `torch` record pinned memory as 2.14 and later do, and return its host allocator."""
    host, memory = CachingHostAllocator(record_history=True), torch.cuda.memory
    record, take = memory._record_memory_history, memory._snapshot
    is_on = [False]

    def _record_memory_history(
        *arguments: Any, record_pinned_host_memory: bool = False, **named: Any
    ) -> None:
        assert arguments != (None,) or not record_pinned_host_memory, "PyTorch refuses it"
        is_on[0] = record_pinned_host_memory
        record(*arguments, **named)

    def _snapshot() -> dict[str, Any]:
        traces = [
            {"action": entry.action, "addr": entry.address, "size": entry.size, "stream": 0}
            for entry in host.history
        ]
        of_host = {"host_segments": host.host_segments(), "host_traces": traces}
        return {**take(), **(of_host if is_on[0] else {})}

    memory._record_memory_history, memory._snapshot = _record_memory_history, _snapshot
    return host


def test_capture_records_pinned_memory_if_the_release_can(torch: Pretend, tmp_path: Path) -> None:
    host = with_pinned_memory(torch)
    with capture(tmp_path / "run.pickle", on="exit"):
        torch.empty(MIB)
        host.malloc(3 * MIB)
    assert torch.log[-1] == ((None,), {}), "the history is stopped"
    assert set(load_host(tmp_path / "run-exit.pickle").size.tolist()) == {4 * MIB}


def test_capture_above_its_limit_drops_the_oldest_pinned_memory_too(
    torch: Pretend, tmp_path: Path
) -> None:
    host = with_pinned_memory(torch)
    with capture(tmp_path / "run.pickle", "exit", max_disk="12 KiB"):
        for _ in range(100):
            torch.empty(MIB)
            torch.drop()
            host.malloc(MIB)
    path = tmp_path / "run-exit.pickle"
    pinned, device = load_host(path), whole(path).devices[0]
    assert path.stat().st_size <= 12 * KIB and len(device) and len(pinned)
    n_before = 301 + len(host.history)
    n_left_out = n_before - len(device) - len(pinned)
    assert f"; {n_left_out} older entries are left out" in captured(whole(path))


def test_capture_leaves_the_programs_own_recording_alone(
    use: Callable[[Pretend], Pretend], tmp_path: Path
) -> None:
    torch = use(Pretend(is_recording=True))
    torch.empty(MIB)
    with capture(tmp_path / "run.pickle", on="exit") as recording:
        recording.step()
        torch.empty(MIB)
    assert torch.log == []
    marks = whole(tmp_path / "run-exit.pickle").devices[0].marks
    assert marks == (Mark(2, MarkKind.STEP, 1),)


def test_late_capture_names_the_bytes_at_its_start(torch: Pretend, tmp_path: Path) -> None:
    torch.empty(8 * MIB)
    with capture(tmp_path / "run.pickle", on="exit"):
        torch.empty(MIB)
    text = captured(load(tmp_path / "run-exit.pickle"))
    assert text == "at the end; recording began when 8.00 MiB were allocated"


def test_later_import_of_torch_is_captured_from_the_first_allocation(
    tmp_path: Path,
) -> None:
    """The program runs in a separate interpreter, with a fake package torch."""
    (tmp_path / "torch.py").write_text(
        "import sys\nfrom tests.capture.pretend import Pretend\n"
        "module = Pretend()\nvars(sys.modules[__name__]).update(vars(module), empty=module.empty)\n"
    )
    code = (
        f"from allocsim.capture import capture\nwith capture({str(tmp_path / 'out')!r}, 'exit'):\n"
        "    import torch\n    torch.empty(1 << 20)\n"
    )
    places = os.pathsep.join((str(tmp_path), str(Path(__file__).parents[2])))
    environment = {**os.environ, "PYTHONPATH": places}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    assert len(whole(tmp_path / "out-exit.pickle").devices[0]) == 2


@pytest.mark.parametrize(
    ("environment", "name"),
    [
        ({}, "run-exit.pickle"),
        ({"RANK": "3", "LOCAL_RANK": "1"}, "run-rank3-exit.pickle"),
        ({"LOCAL_RANK": "1"}, "run-rank1-exit.pickle"),
        ({"SLURM_PROCID": "12", "LOCAL_RANK": "4"}, "run-rank12-exit.pickle"),
        ({"RANK": "no number"}, "run-exit.pickle"),
    ],
)
def test_capture_file_is_named_by_rank(
    torch: Pretend,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    name: str,
) -> None:
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    with capture(tmp_path / "run.pickle", on="exit"):
        torch.empty(MIB)
    assert names(tmp_path) == [name]


def test_rank_of_the_process_group_has_priority(
    torch: Pretend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    torch.distributed = types.SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: True, get_rank=lambda: 5
    )
    with capture(tmp_path / "run.pickle", on="exit"):
        torch.empty(MIB)
    (name,) = names(tmp_path)
    assert name == "run-rank5-exit.pickle"
    made = load(tmp_path / name).provenance
    assert made is not None and made.rank == "5"


def test_capture_accepts_a_folder_as_path(torch: Pretend, tmp_path: Path) -> None:
    with capture(f"{tmp_path}/new/", on="exit"):
        torch.empty(MIB)
    assert names(tmp_path / "new") == ["capture-exit.pickle"]


@pytest.mark.parametrize(
    ("steps", "expected"),
    [(2, ["run-step2.pickle", "run-step4.pickle"]), ([3], ["run-step3.pickle"])],
)
def test_step_is_captured_when_it_ends(
    torch: Pretend, tmp_path: Path, steps: Any, expected: list[str]
) -> None:
    with capture(tmp_path / "run.pickle", on="step", steps=steps) as recording:
        for _ in range(5):
            recording.step()
            torch.empty(MIB)
    assert names(tmp_path) == expected
    number = expected[-1].removeprefix("run-step")[0]
    found = whole(tmp_path / expected[-1])
    assert captured(found) == f"at the end of step {number}"
    allocations = sum(1 for action in found.devices[0].action if action == 0)
    assert allocations <= 2 * int(number)


def test_decorator_captures_every_call(torch: Pretend, tmp_path: Path) -> None:
    @capture(tmp_path / "run.pickle", on="exit")
    def work(size: int) -> int:
        return torch.empty(size)

    first = work(MIB)
    data = (tmp_path / "run-exit.pickle").read_bytes()
    torch.drop()
    assert work(MIB) == first and work.__name__ == "work"
    assert load(tmp_path / "run-exit.pickle").provenance is not None
    assert data != (tmp_path / "run-exit.pickle").read_bytes(), "the second call replaced the file"
    assert [call[0] for call in torch.log] == [("all",), (None,)] * 2


def test_decorated_coroutine_is_captured_while_it_runs(torch: Pretend, tmp_path: Path) -> None:
    @capture(tmp_path / "run.pickle", on="exit")
    async def work() -> int:
        return torch.empty(MIB)

    made = work()
    assert torch.log == [] and names(tmp_path) == []
    asyncio.run(made)
    assert names(tmp_path) == ["run-exit.pickle"]


def test_full_ring_is_reported_and_keeps_the_marks(torch: Pretend, tmp_path: Path) -> None:
    with capture(tmp_path / "run.pickle", on="exit", max_entries=20) as recording:
        torch.empty(20 * MIB)
        for _ in range(10):
            recording.step()
            torch.empty(MIB)
            torch.drop()
    recording_ = load(tmp_path / "run-exit.pickle")
    trace = recording_.devices[0]
    assert len(trace) == 20
    # A step has three entries; 31 were counted, and the newest 20 are kept.
    text = captured(recording_)
    assert text == "at the end; its ring of 20 entries was full, and 11 older ones are lost"
    marks = [(mark.entry, mark.value) for mark in trace.marks]
    assert marks == [(0, 4), (2, 5), (5, 6), (8, 7), (11, 8), (14, 9), (17, 10)]


def test_oldest_capture_is_removed_for_a_new_one(
    torch: Pretend,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Each file has the command, and the command of this test run may be long.
    monkeypatch.setattr(sys, "orig_argv", ["python", "train.py"])
    with capture(tmp_path / "run.pickle", "step", 1, max_disk="12 KiB") as recording:
        for _ in range(9):
            recording.step()
            torch.empty(MIB)
    left = names(tmp_path)
    assert left[-1] == "run-step9.pickle" and "run-step1.pickle" not in left
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 12 * KIB
    assert recording.files == [str(tmp_path / name) for name in left]
    logged = [record.getMessage() for record in caplog.records]
    assert logged == ["allocsim: captures reached their limit of 12.00 KiB; the oldest are removed"]


def test_capture_above_its_limit_drops_the_oldest_entries(
    torch: Pretend, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with capture(tmp_path / "run.pickle", "exit", max_disk="12 KiB") as recording:
        for _ in range(100):
            recording.step()
            torch.empty(MIB)
            torch.drop()
    path = tmp_path / "run-exit.pickle"
    assert path.stat().st_size <= 12 * KIB
    recording_ = whole(path)
    trace = recording_.devices[0]
    assert 0 < len(trace) < 301
    assert f"{301 - len(trace)} older entries are left out" in captured(recording_)
    assert trace.marks[-1].value == 100 and trace.marks[-1].entry == len(trace) - 3
    assert "no room (limit 12.00 KiB" in caplog.text


class _Full:
    """Disk with `room` bytes of free space."""

    def __init__(self, room: int, code: int) -> None:
        self.room = room
        self.code = code

    def dump(self, value: Any, file: Any, protocol: int) -> None:
        data = pickle.dumps(value, protocol)
        if len(data) > self.room:
            file.write(data[: self.room])
            raise OSError(self.code, os.strerror(self.code))
        file.write(data)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EFBIG])
def test_capture_on_a_full_disk_saves_what_fits(
    torch: Pretend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(files, "pickle", _Full(12 * KIB, code))
    with pytest.raises(OutOfMemoryError), capture(tmp_path / "run.pickle") as recording:
        for _ in range(100):
            torch.empty(MIB)
            torch.drop()
        train(torch, recording)
    assert names(tmp_path) == ["run-step4-oom.pickle"], "and no partial file"
    recording_ = load(tmp_path / "run-step4-oom.pickle")
    assert len(recording_.devices[0]) < 300 and "left out" in captured(recording_)


def test_capture_uses_the_temporary_folder_if_its_own_is_read_only(
    torch: Pretend,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A folder below a file cannot be created, not even by root."""
    (tmp_path / "file").touch()
    (tmp_path / "other").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "other"))
    with pytest.raises(OutOfMemoryError), capture(tmp_path / "file" / "run.pickle") as recording:
        train(torch, recording)
    assert names(tmp_path / "other") == ["run-step4-oom.pickle"]
    assert f"{tmp_path}/file cannot be written to; captures go to {tmp_path}/other" in caplog.text


def test_error_of_the_capture_is_logged_once_and_not_raised(
    torch: Pretend, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> None:
        raise RuntimeError("no snapshot today")

    with pytest.raises(OutOfMemoryError), capture(tmp_path / "a", "step", 1) as recording:
        recording.step()
        torch.empty(MIB)
        torch.cuda.memory._snapshot = broken
        train(torch, recording)
    assert names(tmp_path) == []
    logged = [record for record in caplog.records if record.levelno >= logging.WARNING]
    begins = [record.getMessage().split(" failed, ")[0] for record in logged]
    assert begins == [
        f"allocsim: {each}" for each in ("step", "on_out_of_memory", "failed", "stop")
    ]
    assert all("RuntimeError: no snapshot today" in record.getMessage() for record in logged)


@pytest.mark.parametrize(
    "broken", ["_record_memory_history", "_snapshot", "observer", "memory_stats"]
)
def test_program_continues_when_any_function_of_torch_fails(
    torch: Pretend, tmp_path: Path, broken: str
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError(broken)

    if broken == "observer":
        torch._C._cuda_attach_out_of_memory_observer = fails
    else:
        where = torch.cuda if broken == "memory_stats" else torch.cuda.memory
        setattr(where, broken, fails)
    with capture(tmp_path / "run.pickle", ("exit", "step"), 1) as recording:
        train(torch, recording, 2)
    assert len(torch.blocks) == 2


def test_ooms_in_two_threads_are_two_files(torch: Pretend, tmp_path: Path) -> None:
    caught: list[BaseException] = []

    def greedy() -> None:
        try:
            torch.empty(80 * MIB)
        except OutOfMemoryError as error:
            caught.append(error)

    with capture(tmp_path / "run.pickle"):
        torch.empty(MIB)
        threads = [threading.Thread(target=greedy) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(caught) == 2
    assert names(tmp_path) == ["run-oom.pickle", "run-oom2.pickle"]
    for name in names(tmp_path):
        whole(tmp_path / name)


def test_forked_child_writes_no_capture(
    torch: Pretend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with capture(tmp_path / "run.pickle", on="exit") as recording:
        torch.empty(MIB)
        with monkeypatch.context() as child:
            child.setattr(os, "getpid", lambda: -1)
            recording.step()
            assert recording.save() is None
            with pytest.raises(OutOfMemoryError):
                torch.empty(80 * MIB)
            recording.stop()
        assert names(tmp_path) == [] and recording.is_active
    assert names(tmp_path) == ["run-exit.pickle"]


def test_forked_child_that_uses_the_device_has_its_own_capture(
    torch: Pretend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = capture(tmp_path / "run.pickle")
    recording.start()
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: 12345)
        with pytest.raises(OutOfMemoryError):
            torch.empty(80 * MIB)
        recording.stop()
    assert names(tmp_path) == ["run-process12345-oom.pickle"]


def test_handled_oom_is_captured_without_its_text(torch: Pretend, tmp_path: Path) -> None:
    with capture(tmp_path / "run.pickle"):
        with pytest.raises(OutOfMemoryError):
            torch.empty(80 * MIB)
        torch.empty(MIB)
    made = whole(tmp_path / "run-oom.pickle").provenance
    assert made is not None and made.oom_text == ""


def test_capture_without_an_observer_writes_an_error_that_leaves_it(
    torch: Pretend, tmp_path: Path
) -> None:
    """XPU has no callback for out-of-memory errors."""
    del torch._C._cuda_attach_out_of_memory_observer
    with pytest.raises(OutOfMemoryError) as found, capture(tmp_path / "run.pickle"):
        torch.empty(80 * MIB)
    made = whole(tmp_path / "run-oom.pickle").provenance
    assert made is not None and made.oom_text == str(found.value)


def test_two_captures_share_the_history(torch: Pretend, tmp_path: Path) -> None:
    with capture(tmp_path / "outer.pickle", on="exit"):
        torch.empty(MIB)
        with capture(tmp_path / "inner.pickle", on="exit"):
            torch.empty(MIB)
        assert len(torch.log) == 1, "the inner capture neither restarted nor stopped it"
        torch.empty(MIB)
    inner, outer = whole(tmp_path / "inner-exit.pickle"), whole(tmp_path / "outer-exit.pickle")
    # The additional entries are the inner snapshot, which PyTorch records, a segment and a block.
    assert (len(inner.devices[0]), len(outer.devices[0])) == (3, 6)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"on": "sometimes"}, "on is 'sometimes'"),
        ({"on": ()}, "on is ()"),
        ({"on": "step"}, "steps is None"),
        ({"steps": 3}, "steps is 3"),
        ({"on": "step", "steps": 0}, "steps is 0"),
        ({"stacks": "c++"}, "stacks is 'c++'"),
        ({"max_entries": 0}, "max_entries is 0"),
        ({"max_disk": "much"}, "much"),
    ],
)
def test_capture_refuses_invalid_arguments_at_once(
    torch: Pretend, tmp_path: Path, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        capture(tmp_path / "run.pickle", **options)
    assert torch.log == []
