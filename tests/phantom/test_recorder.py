"""Recording of unmodified programs, which must not be affected otherwise.

The interpreter and its hook are real; torch is a package of forty lines that records the calls.
The slow tests run the real PyTorch.
"""

from __future__ import annotations

import gzip
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from allocsim.errors import UnavailableError
from allocsim.phantom.at_exit import leave_out_frames
from allocsim.phantom.gpu import Gpu, find_gpu
from allocsim.phantom.installs import find_torch
from allocsim.phantom.recorder import Recorded, RecordedProgram, _settings_of_engines, record
from allocsim.recording import Mark, MarkKind, load, load_host
from allocsim.replaying import replay
from allocsim.units import GIB
from tests.pythons import NEEDS_TORCH, PYTHONS

_TORCH = """
import types
__version__ = "2.15.0+cu130"
class OutOfMemoryError(RuntimeError): pass
class cuda:
    calls, log, reset = [], [], 0
    @staticmethod
    def _lazy_call(function): cuda.calls.append(function)
    @staticmethod
    def init():
        while cuda.calls: cuda.calls.pop()()
    device_count = staticmethod(lambda: 1)
    current_device = staticmethod(lambda: 0)
    get_device_properties = staticmethod(lambda n: types.SimpleNamespace(name="Pretend"))
    mem_get_info = staticmethod(lambda: (1 << 29, 1 << 30))
    @staticmethod
    def memory_stats(device):
        return {"allocation.all.allocated": len(cuda.log) - cuda.reset}
    class memory:
        @staticmethod
        def _record_memory_history(*args, **named): cuda.log.append("recording")
        @staticmethod
        def _snapshot():
            entry = {"action": "alloc", "addr": 4096, "size": 512, "stream": 0, "frames": []}
            segment = {**entry, "action": "segment_alloc"}
            return {
                "segments": [],
                "device_traces": [[segment, *[entry] * len(cuda.log)]],
                "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": _C.conf},
            }
    class MemPool:
        id = (0, 7)
class _C:
    conf = "max_split_size_mb:64"
    _cuda_emptyCache = staticmethod(lambda: None)
    _cuda_setMemoryFraction = staticmethod(lambda fraction, device: None)
    @staticmethod
    def _accelerator_setAllocatorSettings(conf): _C.conf = conf
    @staticmethod
    def _cuda_resetAccumulatedMemoryStats(device): cuda.reset = len(cuda.log)
"""

LONG_S = 600
"""Seconds that are longer than any program of these tests takes on a busy machine."""
OVER = f"sitecustomize.recorder.began -= {LONG_S}"
"""Line of a program that moves its start LONG_S seconds back."""
BEGAN = "ALLOCSIM_RECORD_BEGAN"


@pytest.fixture
def pretend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a fake torch that is on the path of every program."""
    package = tmp_path / "packages" / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(_TORCH)
    (package / "version.py").write_text('__version__ = "2.15.0+cu130"\ncuda = "13.0"\n')
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    return tmp_path


def run(folder: Path, program: str, out: str = "snapshot.pickle", **named: object) -> Recorded:
    path = folder / "program.py"
    path.write_text(program)
    command = (sys.executable, str(path))
    return record(RecordedProgram(command, folder / out, gpu=None, **named))  # type: ignore[arg-type]


def test_record_writes_the_history_and_its_provenance(pretend: Path) -> None:
    recorded = run(pretend, "import torch\ntorch.cuda.init()\nraise SystemExit(3)\n")
    assert recorded.exit_code == 3
    (process,) = recorded.processes
    assert (process.entries, process.oom_text, process.stopped_by) == (2, "", "")
    made = load(process.file).provenance
    assert made is not None
    assert (made.torch_version, made.release, made.exit_code) == ("2.15.0+cu130", "2.15", 3)
    assert (made.device_name, made.device_memory, made.is_phantom) == ("Pretend", 1 << 30, False)
    assert made.command.endswith("program.py")
    # The recording is the only new file.
    assert sorted(path.name for path in pretend.iterdir()) == [
        "packages",
        "program.py",
        "snapshot.pickle",
    ]


def test_recording_has_the_form_of_a_pytorch_snapshot(pretend: Path) -> None:
    (process,) = run(pretend, "import torch\ntorch.cuda.init()\n").processes
    snapshot = pickle.loads(process.file.read_bytes())
    assert list(snapshot) == [
        "segments",
        "device_traces",
        "allocator_settings",
        "allocsim",
    ]
    assert snapshot["allocsim"]["exit_code"] == 0


def test_program_may_search_for_torch_before_it_imports_it(pretend: Path) -> None:
    program = (
        "import importlib.util\nassert importlib.util.find_spec('torch') is not None\n"
        "import torch\ntorch.cuda.init()\n"
    )
    assert len(run(pretend, program).processes) == 1


def test_recording_by_column_equals_the_one_by_rows(pretend: Path) -> None:
    program = "import torch\ntorch.cuda.init()\ntorch._C._cuda_emptyCache()\n"
    (rows,) = run(pretend, program, out="rows.pickle").processes
    (columns,) = run(pretend, program, out="columns.pickle", by_column=True).processes
    (entries,) = pickle.loads(columns.file.read_bytes())["device_traces"]
    assert entries["action"] == ["segment_alloc", "alloc"]
    assert entries["frames"][0] is entries["frames"][1], "equal stacks are one object"
    assert columns.entries == rows.entries == 2
    (one,), (other,) = load(columns.file).devices, load(rows.file).devices
    assert list(one) == list(other)
    assert one.marks == other.marks
    assert one.marks


def test_summary_is_written_without_a_history(pretend: Path) -> None:
    """An allocation precedes the end, because processes without any leave no recording."""
    program = (
        "import torch\ntorch.cuda.init()\nrecorded = torch.cuda.log == ['recording']\n"
        "torch.cuda.log.append('alloc')\nraise SystemExit(recorded)\n"
    )
    whole, summary = (run(pretend, program, is_summary=each) for each in (False, True))
    assert (whole.exit_code, summary.exit_code) == (1, 0)
    assert len(summary.processes) == 1


def test_sizes_only_uses_one_thread_on_the_host(pretend: Path) -> None:
    program = "import os, torch\ntorch.cuda.init()\nraise SystemExit(os.environ[NAME] == '1')\n"
    program = program.replace("NAME", "'OMP_NUM_THREADS'")
    assert run(pretend, program, sizes_only=True).exit_code == 1


@pytest.mark.parametrize("own", [None, "/a/folder"])
def test_compiler_cache_is_of_one_run_on_a_phantom(
    own: str | None, pretend: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs that share a cache would differ in memory; the user can still name a folder."""
    module = sys.modules[record.__module__]
    monkeypatch.setattr(module, "find_torch", lambda _: object())
    monkeypatch.setattr(module, "phantom_environment", lambda *_, **__: {})
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    if own is not None:
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", own)
    file, path = pretend / "folders.txt", pretend / "program.py"
    path.write_text(
        "import os\nwith open('FILE', 'a') as file:\n"
        "    print(os.environ['TORCHINDUCTOR_CACHE_DIR'], file=file)\n".replace("FILE", str(file))
    )
    command = (sys.executable, str(path))
    for _ in range(2):
        record(RecordedProgram(command, pretend / "snapshot.pickle", gpu=find_gpu("A100 80GB")))
    first, second = file.read_text().split()
    assert first == second == own if own is not None else first != second


def test_caches_of_an_engine_differ_by_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALLOCSIM_CACHE", str(tmp_path))
    places = [
        _settings_of_engines(find_gpu(name))["VLLM_CACHE_ROOT"] for name in ("T4", "H100", "H100")
    ]
    assert places[0] != places[1] == places[2]


def test_recording_is_compressed_if_its_name_ends_in_gz(pretend: Path) -> None:
    program = "import torch\ntorch.cuda.init()\n"
    (process,) = run(pretend, program, out="run.pickle.gz").processes
    assert process.file.name == "run.pickle.gz"
    assert pickle.loads(gzip.decompress(process.file.read_bytes()))["allocsim"]["exit_code"] == 0


def test_oom_text_is_recorded_and_still_printed(
    pretend: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = (
        "import torch\ntorch.cuda.init()\n"
        "try:\n    raise torch.OutOfMemoryError('CUDA out of memory. Tried')\n"
        "except RuntimeError as error:\n    raise ValueError('while loading') from error\n"
    )
    recorded = run(pretend, program)
    assert recorded.exit_code == 1
    assert recorded.processes[0].oom_text == "CUDA out of memory. Tried"
    assert "ValueError: while loading" in capfd.readouterr().err


def test_program_without_cuda_leaves_no_recording(pretend: Path) -> None:
    recorded = run(pretend, "import torch\n")
    assert (recorded.exit_code, recorded.processes) == (0, ())
    assert not (pretend / "snapshot.pickle").exists()


def test_several_ranks_leave_several_files(pretend: Path) -> None:
    program = (
        "import os, subprocess, sys\n"
        "child = 'import torch; torch.cuda.init()'\n"
        "for rank in '01':\n"
        "    subprocess.run([sys.executable, '-c', child], env={**os.environ, 'RANK': rank})\n"
    )
    recorded = run(pretend, program, out="run.pickle")
    assert [process.file.name for process in recorded.processes] == [
        "run-rank0.pickle",
        "run-rank1.pickle",
    ]


def test_forked_child_does_not_write_the_history_of_its_parent(pretend: Path) -> None:
    program = (
        "import os, torch\ntorch.cuda.init()\n"
        "if os.fork() == 0:\n    raise SystemExit(0)\nos.wait()\n"
    )
    assert len(run(pretend, program).processes) == 1


@pytest.mark.parametrize(
    ("guard", "body"),
    [
        ("max_entries", "while True: torch.cuda.log.append(1); time.sleep(0.001)"),
        ("max_seconds", f"{OVER}\n    while True: time.sleep(0.01)"),
    ],
)
def test_guard_ends_an_endless_loop_in_order(pretend: Path, guard: str, body: str) -> None:
    """`finally` runs, the recording is written, and the exit code is 0."""
    mark = pretend / "ended-in-order"
    program = (
        f"import sitecustomize, time, torch\ntorch.cuda.init()\ntry:\n    {body}\n"
        f"finally:\n    open({str(mark)!r}, 'w').close()\n"
    )
    limits: dict[str, object] = {guard: 20 if guard == "max_entries" else LONG_S}
    recorded = run(pretend, program, out="snapshot.pickle", **limits)
    assert recorded.exit_code == 0
    assert recorded.processes[0].stopped_by == guard.replace("_", "-")
    assert mark.exists()


def test_guard_does_not_interrupt_the_write_of_a_recording(pretend: Path) -> None:
    """The limit passes while the hook writes the recording."""
    program = (
        "import sitecustomize, time, torch\ntorch.cuda.init()\n"
        "sitecustomize.GRACE_S = 0.1\n"
        "write = torch.cuda.memory._snapshot\n"
        "def slowly():\n"
        f"    {OVER}\n"
        "    for _ in range(60): time.sleep(0.01)\n"
        "    return write()\n"
        "torch.cuda.memory._snapshot = slowly\n"
    )
    recorded = run(pretend, program, max_seconds=LONG_S)
    assert recorded.exit_code == 0
    assert [each.stopped_by for each in recorded.processes] == [""]


def test_write_may_take_longer_than_the_grace_period(pretend: Path) -> None:
    program = (
        "import sitecustomize, time, torch\ntorch.cuda.init()\n"
        "sitecustomize.GRACE_S = 0.1\n"
        "write = torch.cuda.memory._snapshot\n"
        "def slowly():\n    time.sleep(0.5)\n    return write()\n"
        "torch.cuda.memory._snapshot = slowly\n"
        f"{OVER}\nwhile True: time.sleep(0.01)\n"
    )
    recorded = run(pretend, program, max_seconds=LONG_S)
    assert recorded.exit_code == 0
    assert [each.stopped_by for each in recorded.processes] == ["max-seconds"]


def test_program_that_does_not_stop_is_ended_after_the_write(pretend: Path) -> None:
    program = (
        "import sitecustomize, time, torch\ntorch.cuda.init()\n"
        "sitecustomize.GRACE_S = 0.1\n"
        f"{OVER}\nwhile True:\n"
        "    try:\n        time.sleep(0.01)\n"
        "    except SystemExit:\n        pass\n"
    )
    recorded = run(pretend, program, max_seconds=LONG_S)
    assert recorded.exit_code == 0
    assert [each.stopped_by for each in recorded.processes] == ["max-seconds"]


def test_max_seconds_count_from_the_start_of_the_program(pretend: Path) -> None:
    """A process that the program starts late has only the remaining time."""
    child = "import torch, time; torch.cuda.init()\nwhile True: time.sleep(0.01)"
    program = (
        "import os, subprocess, sys\n"
        f"began = float(os.environ['{BEGAN}']) - {LONG_S - 3}\n"
        f"os.environ['{BEGAN}'] = str(began)\n"
        f"subprocess.run([sys.executable, '-c', {child!r}], timeout={LONG_S / 2})\n"
    )
    (process,) = run(pretend, program, max_seconds=LONG_S).processes
    assert process.stopped_by == "max-seconds"


def test_calls_without_entry_are_marked(pretend: Path) -> None:
    """Each mark has the number of entries before it, even if the statistics are reset."""
    program = (
        "import torch\nfrom torch import _C\ntorch.cuda.init()\n"
        "def ask(): torch.cuda.log.append(1)\n"
        "_C._cuda_setMemoryFraction(0.5, 0)\nask()\n"
        "_C._cuda_emptyCache()\nask()\nask()\n"
        "_C._cuda_resetAccumulatedMemoryStats(0)\n"
        "pool = torch.cuda.MemPool()\nask()\n"
        "_C._accelerator_setAllocatorSettings('expandable_segments:True')\n"
        "del pool\n"
    )
    (process,) = run(pretend, program).processes
    recording = load(process.file)
    # "recording" is the first of the fake entries, and a segment precedes it.
    assert recording.devices[0].marks == (
        Mark(2, MarkKind.FRACTION, 0.5),
        Mark(3, MarkKind.EMPTY_CACHE),
        Mark(5, MarkKind.POOL_CREATED, (0, 7)),
        Mark(6, MarkKind.SETTINGS, "expandable_segments:True"),
        Mark(6, MarkKind.POOL_DELETED, (0, 7)),
    )
    assert recording.provenance is not None
    assert recording.provenance.conf_at_start == "max_split_size_mb:64"


def test_incomplete_history_has_no_marks(pretend: Path) -> None:
    """If entries are missing, the position of a mark is unknown."""
    program = (
        "import torch\ntorch.cuda.init()\ntorch._C._cuda_emptyCache()\ntorch.cuda.reset = -5\n"
    )
    (process,) = run(pretend, program).processes
    assert load(process.file).devices[0].marks == ()


def test_sitecustomize_of_the_program_still_runs(
    pretend: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (pretend / "packages" / "sitecustomize.py").write_text("print('theirs')\n")
    run(pretend, "print('program')\n")
    assert capfd.readouterr().out == "theirs\nprogram\n"


def test_conf_replaces_other_conf_variables(
    pretend: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An option string under another name would take precedence, so it is removed."""
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    program = "import os; print([v for k, v in os.environ.items() if k.endswith('ALLOC_CONF')])"
    run(pretend, program, conf="max_split_size_mb:64")
    assert capfd.readouterr().out == "['max_split_size_mb:64']\n"
    assert os.environ["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"


def test_program_ended_by_a_signal_has_exit_code_128_plus_n(pretend: Path) -> None:
    program = "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\n"
    assert run(pretend, program).exit_code == 128 + 15


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (("no-such-command",), "'no-such-command' is no command; expected a program to run"),
        ((sys.executable, "-c", ""), "has no PyTorch; expected a CUDA build of torch"),
    ],
)
def test_record_refuses_a_command_that_cannot_start(
    tmp_path: Path, command: tuple[str, ...], sentence: str
) -> None:
    with pytest.raises(UnavailableError, match=sentence):
        record(RecordedProgram(command, tmp_path / "out.pickle", gpu=Gpu("x", GIB)))
    assert list(tmp_path.iterdir()) == []


def test_build_without_cuda_is_refused_by_name(pretend: Path) -> None:
    version = pretend / "packages" / "torch" / "version.py"
    version.write_text('__version__ = "2.15.0+cpu"\ncuda = None\n')
    with pytest.raises(UnavailableError, match=r"has torch 2\.15\.0\+cpu, a CPU-only build"):
        find_torch(sys.executable)


def test_this_interpreter_is_searched_without_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("subprocess.run", None)
    with pytest.raises(UnavailableError, match="has no PyTorch"):
        find_torch(sys.executable)
    (tmp_path / "torch.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(TypeError):  # a process looks for its release
        find_torch(sys.executable)


def test_record_turns_on_pinned_memory_if_the_release_can(pretend: Path) -> None:
    program = (
        "import torch\n"
        "def record(enabled, record_pinned_host_memory=False, **named):\n"
        "    torch.cuda.log.append(record_pinned_host_memory)\n"
        "torch.cuda.memory._record_memory_history = record\n"
        "torch.cuda.init()\n"
        "raise SystemExit(torch.cuda.log == [True])\n"
    )
    assert run(pretend, program).exit_code == 1


def test_stacks_have_no_frames_of_the_hook() -> None:
    program, hook = ({"filename": name, "name": "f", "line": 1} for name in ("/a.py", "/hook/b.py"))
    shared: list[object] = [hook, program]
    entries: list[dict[str, Any]] = [{"frames": shared}, {"frames": shared}, {"frames": [hook]}, {}]
    segment = {"frames": [program], "blocks": [{"frames": [hook, hook, program]}]}
    snapshot = {"segments": [segment], "device_traces": [entries]}
    leave_out_frames(snapshot, "/hook")
    assert entries == [{"frames": [program]}, {"frames": [program]}, {"frames": []}, {}]
    assert entries[0]["frames"] is entries[1]["frames"]
    assert segment == {"frames": [program], "blocks": [{"frames": [program]}]}


def recorded_by_torch(python: str, folder: Path, program: str) -> tuple[dict[str, Any], str]:
    """Return the document of `allocsim record` on a phantom A100 and the program's output."""
    path = folder / "program.py"
    path.write_text(program)
    command = [sys.executable, "-m", "allocsim", "record", "--gpu", "A100 80GB", "--json"]
    done = subprocess.run(
        [*command, "-o", str(folder / "out.pickle"), "--", python, str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout), done.stderr


@pytest.mark.slow
@NEEDS_TORCH
@pytest.mark.parametrize("python", PYTHONS)
def test_real_pytorch_finds_the_card_that_is_not_there(python: str, tmp_path: Path) -> None:
    program = (
        "import torch\n"
        "net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8)).cuda()\n"
        "net(torch.randn(2, 3, 32, 32, device='cuda')).sum().backward()\n"
        "print(torch.cuda.get_device_name(), torch.cuda.mem_get_info()[1])\n"
    )
    document, printed = recorded_by_torch(python, tmp_path, program)
    gpu = find_gpu("A100 80GB")
    assert f"{gpu.name} {gpu.memory}" in printed
    recording = load(tmp_path / "out.pickle")
    assert document["recordings"][0]["entries"] == len(recording.devices[0])
    assert document["recordings"][0]["reads_back"] is None
    assert document["recordings"][0]["guessed"] == "cuDNN"


@pytest.mark.slow
@NEEDS_TORCH
@pytest.mark.parametrize("python", PYTHONS)
def test_real_pytorch_records_stacks_and_pinned_memory_of_the_program(
    python: str, tmp_path: Path
) -> None:
    """Autograd runs backward in another thread, without frames of Python."""
    program = (
        "import torch\n"
        "net = torch.nn.Sequential(torch.nn.Embedding(100, 64), torch.nn.Linear(64, 8)).cuda()\n"
        "net(torch.randint(0, 100, (32,)).cuda()).pow(2).mean().backward()\n"
        "pinned = torch.empty(3 << 20, dtype=torch.uint8, pin_memory=True)\n"
    )
    recorded_by_torch(python, tmp_path, program)
    snapshot = pickle.loads((tmp_path / "out.pickle").read_bytes())
    stacks = [entry.get("frames", []) for entry in snapshot["device_traces"][0]]
    assert not [f for stack in stacks for f in stack if "allocsim" in f["filename"]]
    assert [] in stacks
    assert any(frame["name"] == "<module>" for stack in stacks for frame in stack)
    if "host_traces" in snapshot:
        pinned = load_host(tmp_path / "out.pickle")
        assert pinned.size.tolist() == [4 << 20] * len(pinned)


@pytest.mark.slow
@NEEDS_TORCH
@pytest.mark.parametrize("python", PYTHONS)
def test_real_pytorch_reports_where_it_reads_unknown_values(python: str, tmp_path: Path) -> None:
    """Integers are known, so line 8 is not among the places."""
    program = (
        "import torch\n"
        "x = torch.randn(8, 4, device='cuda', requires_grad=True)\n"
        "for _ in range(3):\n"
        "    loss = x.sum()\n"
        "    loss.backward()\n"
        "    print(loss.item())\n"
        "kept = x[x.sum(1) > 0]\n"
        "torch.arange(8, device='cuda').tolist()\n"
        "assert not (x > 0).any()\n"
    )
    document, _ = recorded_by_torch(python, tmp_path, program)
    places = document["recordings"][0]["reads_back"].split(", ")
    assert [place.rpartition(":")[2] for place in places] == ["7", "9", "6 (3 times)"]


@pytest.mark.slow
@NEEDS_TORCH
@pytest.mark.parametrize("python", PYTHONS)
def test_real_pytorch_transforms_and_solves(python: str, tmp_path: Path) -> None:
    program = (
        "import torch\n"
        "from torch import fft, linalg\n"
        "a = torch.randn(64, 64, device='cuda')\n"
        "many = torch.randn(8, 64, 64, device='cuda')\n"
        "for x in (a, many, a.double(), a.to(torch.complex64)):\n"
        "    for run in (fft.fft, fft.fft2, fft.ifft, linalg.svd, linalg.qr, linalg.cholesky,\n"
        "                linalg.eigh, linalg.inv, linalg.lu_factor, linalg.pinv, linalg.det):\n"
        "        run(x)\n"
        "    linalg.solve(x, x), linalg.lstsq(x, x)\n"
        "fft.irfft2(fft.rfft2(a))\n"
    )
    document, _ = recorded_by_torch(python, tmp_path, program)
    assert document["recordings"][0]["guessed"] == "cuFFT, cuSOLVER"
    assert replay(load(tmp_path / "out.pickle")).devices[0].parting is None


FAKE = "'fake', rank=1, world_size=4, store=FakeStore()"
NCCL_ALONE = "'nccl', rank=0, world_size=1, store=dist.HashStore()"
NCCL = "'nccl', rank=0, world_size=4, store=dist.HashStore()"


@pytest.mark.slow
@NEEDS_TORCH
@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("group", [FAKE, NCCL_ALONE, NCCL])
def test_real_pytorch_trains_one_rank_of_several(group: str, python: str, tmp_path: Path) -> None:
    """Its buckets are allocated, and no check of other ranks' values stops it."""
    program = (
        "import torch, torch.distributed as dist\n"
        "from torch.nn.parallel import DistributedDataParallel\n"
        "from torch.distributed.fsdp import fully_shard\n"
        "from torch.testing._internal.distributed.fake_pg import FakeStore\n"
        f"dist.init_process_group({group})\n"
        "def trains(net, model):\n"
        "    for _ in range(3):\n"
        "        model(torch.randn(8, 512, device='cuda')).sum().backward()\n"
        "        model.zero_grad()\n"
        "net = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(4))).cuda()\n"
        "before = torch.cuda.memory_allocated()\n"
        "trains(net, ddp := DistributedDataParallel(net, device_ids=[0]))\n"
        "bytes_of_buckets = sum(each.nbytes for each in net.parameters())\n"
        "assert torch.cuda.memory_allocated() - before >= bytes_of_buckets\n"
        "del ddp\n"
        "for layer in net: fully_shard(layer)\n"
        "trains(net, fully_shard(net))\n"
        "dist.destroy_process_group()\n"
    )
    document, _ = recorded_by_torch(python, tmp_path, program)
    assert document["recordings"][0]["reads_back"] is None
    assert replay(load(tmp_path / "out.pickle")).devices[0].parting is None


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_engine_in_a_multiprocessing_process_is_recorded(pretend: Path, method: str) -> None:
    """The parent imports torch first; only the child uses CUDA."""
    program = (
        "import multiprocessing, torch\n"
        "def serve():\n    torch.cuda.init()\n"
        "if __name__ == '__main__':\n"
        f"    engine = multiprocessing.get_context({method!r}).Process(target=serve)\n"
        "    engine.start()\n    engine.join()\n    raise SystemExit(engine.exitcode)\n"
    )
    recorded = run(pretend, program)
    assert recorded.exit_code == 0
    assert len(recorded.processes) == 1


def test_engine_killed_soon_after_its_termination_is_recorded(pretend: Path) -> None:
    """Its parent waits until the recording is written."""
    program = (
        "import multiprocessing, os, signal, time, torch\n"
        "def serve(up):\n"
        "    def end(*_):\n        time.sleep(1)\n        raise SystemExit\n"
        "    signal.signal(signal.SIGTERM, end)\n"
        "    torch.cuda.init()\n    up.set()\n    time.sleep(60)\n"
        "up = multiprocessing.Event()\n"
        "engine = multiprocessing.get_context('fork').Process(target=serve, args=(up,))\n"
        "engine.start()\nup.wait()\nengine.terminate()\nengine.kill()\nengine.join()\n"
    )
    assert len(run(pretend, program).processes) == 1
