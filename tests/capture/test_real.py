"""Captures with real PyTorch and three real frameworks, on the phantom GPU.

`ALLOCSIM_TORCH_PYTHON` names the interpreters; a framework that an interpreter lacks is skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from allocsim import explain_recording, replay
from allocsim.phantom import Gpu, find_torch, phantom_environment
from allocsim.recording import MarkKind, Recording, load, load_host
from allocsim.units import GIB
from tests.pythons import NEEDS_TORCH, PYTHONS

pytestmark = [pytest.mark.slow, NEEDS_TORCH]
ROOT = Path(__file__).parents[2]


@cache
def environment(python: str) -> dict[str, str]:
    gpu = Gpu("a card", 4 * GIB)
    return {**os.environ, **phantom_environment(find_torch(python), gpu), "PYTHONPATH": str(ROOT)}


def run(
    python: str, folder: Path, program: str, *before: str, **more: str
) -> subprocess.CompletedProcess[str]:
    (folder / "program.py").write_text(program)
    return subprocess.run(
        [*before, python, "program.py"],
        cwd=folder,
        env=environment(python) | more,
        capture_output=True,
        text=True,
        check=False,
    )


def exact(path: Path) -> Recording:
    """Return a recording that a replay must reproduce exactly."""
    recording = load(path)
    run_ = replay(recording).devices[0]
    assert run_.fidelity is not None and run_.fidelity.is_exact, run_.fidelity
    return recording


_HUGGING_FACE = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from allocsim.capture import for_transformers

getattr(torch.backends.cuda, "enable_cudnn_sdp", bool)(False)

class Hungry(GPT2LMHeadModel):
    n = 0
    def forward(self, input_ids=None, labels=None, **_):
        self.n += 1
        if self.n == 3:
            torch.empty(8 << 30, device="cuda", dtype=torch.uint8)  # too much
        return super().forward(input_ids=input_ids, labels=labels)

row = {"input_ids": torch.zeros(64, dtype=torch.long), "labels": torch.zeros(64, dtype=torch.long)}
arguments = TrainingArguments(
    output_dir="out", max_steps=5, report_to=[], save_strategy="no", disable_tqdm=True,
    logging_strategy="no", dataloader_num_workers=1,
)
callback = for_transformers("run.pickle")
model = Hungry(GPT2Config(n_layer=2, n_embd=128, n_head=4, vocab_size=1000))
Trainer(model=model, args=arguments, train_dataset=[row] * 40, callbacks=[callback]).train()
"""
_LAYERS = """
import torch
def layers():
    return torch.nn.Sequential(
        torch.nn.Linear(512, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 512)
    )
data = torch.utils.data.DataLoader(torch.zeros(40, 512), batch_size=8)
"""
_LIGHTNING = (
    _LAYERS
    + """
import lightning
from allocsim.capture import for_lightning

class Hungry(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = layers()
    def training_step(self, batch, number):
        if number == 2:
            torch.empty(8 << 30, device="cuda", dtype=torch.uint8)  # too much
        return self.layers(batch).sum()
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())

trainer = lightning.Trainer(
    max_epochs=1, callbacks=[for_lightning("run.pickle")], logger=False, accelerator="gpu",
    devices=1, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
)
trainer.fit(Hungry(), data)
"""
)
_COMPOSER = (
    _LAYERS
    + """
from composer import ComposerModel, Trainer
from allocsim.capture import for_composer

class Hungry(ComposerModel):
    n = 0
    def __init__(self):
        super().__init__()
        self.layers = layers()
    def forward(self, batch):
        self.n += 1
        if self.n == 3:
            torch.empty(8 << 30, device="cuda", dtype=torch.uint8)  # too much
        return self.layers(batch)
    def loss(self, outputs, _):
        return outputs.sum()

callback, model = for_composer("run.pickle"), Hungry()
Trainer(
    model=model, train_dataloader=data, max_duration="5ba", callbacks=[callback], device="gpu",
    optimizers=torch.optim.AdamW(model.parameters()), progress_bar=False,
).fit()
"""
)
FRAMEWORKS = {
    "transformers": _HUGGING_FACE,
    "lightning": _LIGHTNING,
    "composer": _COMPOSER,
}


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_framework_callback_captures_an_oom_in_step_3(
    tmp_path: Path, python: str, name: str
) -> None:
    code = f"import {name}" + (", accelerate" if name == "transformers" else "")
    there = subprocess.run(
        [python, "-c", code], env=environment(python), capture_output=True, check=False
    )
    if there.returncode:
        pytest.skip(f"{python} has no {name}")
    done = run(python, tmp_path, FRAMEWORKS[name])
    lines = done.stderr.splitlines()
    (at,) = [i for i, line in enumerate(lines) if line.startswith(("torch.OutOfMemoryError: CUDA",
             "torch.cuda.OutOfMemoryError: CUDA"))]  # fmt: skip
    assert done.returncode == 1
    assert "# too much" in lines[at - 2] or "# too much" in lines[at - 1], "the program's own line"
    assert str(ROOT / "allocsim") not in done.stderr.split("Traceback")[-1], "no allocsim frame"
    recording = exact(tmp_path / "run-step3-oom.pickle")
    made = recording.provenance
    assert made is not None and made.captured == "at an out-of-memory error of step 3"
    assert made.oom_text == lines[at].split(": ", maxsplit=1)[1]
    steps = [mark.value for mark in recording.devices[0].marks if mark.kind is MarkKind.STEP]
    assert steps == [1, 2, 3]
    _, (device,) = explain_recording(recording)
    (shortage,) = device.shortages
    assert shortage.cause == "impossible"


_STEPS = """
import sys, torch
from allocsim.capture import capture
getattr(torch.backends.cuda, "enable_cudnn_sdp", bool)(False)
with capture({path!r}, on="step", steps=1) as recording:
    for number in range(6):
        recording.step()
        model = torch.nn.Linear(1000, 1000).cuda()
        model(torch.zeros(64, 1000, device="cuda")).sum().backward()
        if number == 3: torch.cuda.empty_cache()
        {inside}
print("at its end")
"""
_TOO_MUCH = """
        if number == 4:
            torch.empty(8 << 30, device="cuda", dtype=torch.uint8)
"""


@pytest.mark.parametrize("python", PYTHONS)
def test_capture_works_with_every_release(tmp_path: Path, python: str) -> None:
    done = run(python, tmp_path, _STEPS.format(path="run.pickle", inside=_TOO_MUCH))
    assert done.returncode == 1 and "too much" not in done.stdout
    names = sorted(path.name for path in tmp_path.glob("*.pickle"))
    assert names == [*(f"run-step{n}.pickle" for n in range(1, 5)), "run-step5-oom.pickle",
                     "run-step5.pickle"]  # fmt: skip
    for name in names:
        exact(tmp_path / name)
    kinds = [mark.kind for mark in load(tmp_path / "run-step5-oom.pickle").devices[0].marks]
    assert kinds.count(MarkKind.STEP) == 5 and kinds.count(MarkKind.EMPTY_CACHE) == 1


@pytest.mark.parametrize("python", PYTHONS)
def test_capture_has_pinned_memory_if_the_release_records_it(tmp_path: Path, python: str) -> None:
    program = """
import torch
from allocsim.capture import capture
with capture("run.pickle", on="exit"):
    torch.empty(1 << 20, device="cuda", dtype=torch.uint8)
    kept = [torch.empty(3 << 20, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
after = torch.cuda.memory._snapshot()
print(len(after.get("host_traces", ())), "host_traces" in after)
"""
    done = run(python, tmp_path, program)
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout in {"0 True\n", "0 False\n"}, "the history is stopped"
    if done.stdout == "0 True\n":
        pinned = load_host(tmp_path / "run-exit.pickle")
        assert pinned.size.tolist() == [4 << 20] * 4


@pytest.mark.parametrize("python", PYTHONS)
def test_pytorch_viewer_reads_a_capture(tmp_path: Path, python: str) -> None:
    run(python, tmp_path, _STEPS.format(path="run.pickle", inside=""))
    viewer = """
import pickle
from torch.cuda import _memory_viz
snapshot = pickle.load(open("run-step6.pickle", "rb"))
print(_memory_viz.segsum(snapshot), _memory_viz.trace(snapshot), _memory_viz.trace_plot(snapshot))
"""
    done = run(python, tmp_path, viewer)
    assert done.returncode == 0, done.stderr
    assert "run-step6" not in done.stderr and len(done.stdout) > 10_000


@pytest.mark.skipif(shutil.which("unshare") is None, reason="there is no unshare")
@pytest.mark.parametrize(
    ("mount", "said"),
    [
        ("-t tmpfs -o ro none", "cannot be written to; captures go to"),
        ("-t tmpfs -o size=64k none", "run-step5-oom.pickle"),
        ("-t tmpfs -o size=8k none", "run-step5-oom.pickle"),
    ],
    ids=["read-only", "nearly full", "full"],
)
def test_capture_without_room_or_permission_does_not_stop_the_program(
    tmp_path: Path, mount: str, said: str
) -> None:
    """The folder is another file system, in a separate mount namespace."""
    for name in ("disk", "other", "plain"):
        (tmp_path / name).mkdir()
    before = [
        *("unshare", "-rm", "sh", "-c"),
        f'mount {mount} disk && "$@"; code=$?; cp disk/* plain/; exit $code',
        "sh",
    ]
    if subprocess.run(["unshare", "-rm", "true"], check=False).returncode:
        pytest.skip("mount namespaces are not available")
    program = _STEPS.format(path="disk/run.pickle", inside=_TOO_MUCH)
    done = run(PYTHONS[0], tmp_path, program, *before, TMPDIR=str(tmp_path / "other"))
    assert done.returncode == 1 and "OutOfMemoryError: CUDA out of memory" in done.stderr
    assert said in done.stderr
    (file,) = [*tmp_path.glob("plain/*-oom.pickle"), *tmp_path.glob("other/*-oom.pickle")]
    made = load(file).provenance
    assert made is not None and made.oom_text in done.stderr and made.oom_text
    assert not [*tmp_path.glob("*/*.part")]


def test_killed_process_leaves_earlier_captures(tmp_path: Path) -> None:
    inside = "if number == 3: import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    done = run(PYTHONS[0], tmp_path, _STEPS.format(path="run.pickle", inside=inside))
    assert done.returncode == -9
    names = sorted(path.name for path in tmp_path.glob("run*"))
    assert names == ["run-step1.pickle", "run-step2.pickle", "run-step3.pickle"]
    for name in names:
        exact(tmp_path / name)


_THREADS = """
import threading, torch
from allocsim.capture import capture
errors = []
def greedy(mine):
    for _ in range(200):
        mine.append(torch.empty(1 << 20, device="cuda"))
        if len(mine) > 5: mine.clear()
    try:
        torch.empty(8 << 30, device="cuda", dtype=torch.uint8)
    except RuntimeError as error:
        errors.append(str(error))
with capture("run.pickle", on="exit"):
    threads = [threading.Thread(target=greedy, args=([],)) for _ in range(2)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
assert len(errors) == 2 and all("out of memory" in error for error in errors)
"""


def test_two_threads_capture_ooms_at_once(tmp_path: Path) -> None:
    done = run(PYTHONS[0], tmp_path, _THREADS)
    assert done.returncode == 0, done.stderr
    names = sorted(path.name for path in tmp_path.glob("*.pickle"))
    assert names == ["run-exit.pickle", "run-oom.pickle", "run-oom2.pickle"]
    for name in names:
        assert len(load(tmp_path / name).devices[0]) > 400


_FORK = """
import os, torch, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of fork() with threads
from allocsim.capture import capture
with capture("run.pickle", on="exit") as recording:
    torch.empty(1 << 20, device="cuda")
    data = torch.utils.data.DataLoader(torch.zeros(64, 8), batch_size=8, num_workers=2)
    assert len(list(data)) == 8
    child = os.fork()
    if not child:
        recording.step()
        recording.save()
if child:
    assert os.waitpid(child, 0)[1] == 0
"""


def test_forked_worker_writes_no_capture_and_exits_with_0(tmp_path: Path) -> None:
    done = run(PYTHONS[0], tmp_path, _FORK)
    assert (done.returncode, done.stderr) == (0, "")
    assert [path.name for path in tmp_path.glob("run*")] == ["run-exit.pickle"]
    assert len(exact(tmp_path / "run-exit.pickle").devices[0]) == 4, (
        "a segment and a block that comes and goes"
    )


def test_unmodified_program_is_captured_with_real_pytorch(tmp_path: Path) -> None:
    """This interpreter's package is loaded into the program's interpreter."""
    program = """
import torch
xs = [torch.empty(1 << 28, device="cuda") for _ in range(5)]
"""
    hook = ROOT / "allocsim" / "capture" / "hook"
    more = {"PYTHONPATH": str(hook), "ALLOCSIM_CAPTURE": "run.pickle"}
    done = run(PYTHONS[0], tmp_path, program, **more)
    assert done.returncode == 1
    recording = exact(tmp_path / "run-oom.pickle")
    assert recording.provenance is not None
    assert recording.provenance.oom_text in done.stderr
