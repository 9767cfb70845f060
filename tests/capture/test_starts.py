"""Captures by framework callbacks and by environment variables."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from allocsim.capture import for_composer, for_lightning, for_transformers, install
from allocsim.recording import load
from allocsim.units import MIB
from tests.capture.pretend import Pretend

ROOT = Path(__file__).parents[2]


class Base:
    """Fake base class of the frameworks' callbacks."""


def framework(monkeypatch: pytest.MonkeyPatch, name: str, base: str) -> None:
    module: Any = types.ModuleType(name)
    setattr(module, base, Base)
    if "." in name:
        monkeypatch.setitem(sys.modules, name.split(".", maxsplit=1)[0], types.ModuleType("parent"))
    monkeypatch.setitem(sys.modules, name, module)


def moments_of(path: Path) -> list[tuple[str, object]]:
    return [(mark.kind.value, mark.value) for mark in load(path).devices[0].marks]


def test_transformers_callback_captures_steps_and_phases(
    torch: Pretend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    framework(monkeypatch, "transformers", "TrainerCallback")
    callback = for_transformers(str(tmp_path / "run.pickle"), on="exit")
    assert Base in type(callback).__mro__, "it derives from the framework's class"
    torch.empty(MIB)  # the model moves to the device when the Trainer is created
    arguments = types.SimpleNamespace()
    callback.on_train_begin(arguments, None, None, model=None)
    for done in (10, 11):
        callback.on_step_begin(arguments, types.SimpleNamespace(global_step=done), None, model=None)
        torch.empty(MIB)
        callback.on_pre_optimizer_step(arguments, None, None, model=None)
    callback.capture.stop()
    steps = [("step", 11), ("phase", "optimizer"), ("step", 12), ("phase", "optimizer")]
    assert moments_of(tmp_path / "run-exit.pickle") == steps
    assert load(tmp_path / "run-exit.pickle").devices[0].marks[0].entry == 2


def test_lightning_callback_captures_steps_and_phases(
    torch: Pretend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    framework(monkeypatch, "lightning.pytorch", "Callback")
    callback = for_lightning(str(tmp_path / "run.pickle"), on="exit")
    trainer = types.SimpleNamespace(fit_loop=types.SimpleNamespace(total_batch_idx=4))
    callback.setup(trainer, None, "fit")
    torch.empty(MIB)
    callback.on_train_batch_start(trainer, None, None, 4)
    callback.on_before_backward(trainer, None, None)
    callback.on_before_optimizer_step(trainer, None, None)
    error = type("OutOfMemoryError", (RuntimeError,), {})("full")
    callback.on_exception(trainer, None, error)
    callback.capture.stop()
    parts = [("phase", each) for each in ("forward", "backward", "optimizer")]
    assert moments_of(tmp_path / "run-exit.pickle") == [("step", 5), *parts]
    made = load(tmp_path / "run-step5-oom.pickle").provenance
    assert made is not None and made.oom_text == "full"


def test_lightning_callback_works_under_the_old_package_name(
    torch: Pretend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "lightning"]:
        monkeypatch.delitem(sys.modules, name)
    framework(monkeypatch, "pytorch_lightning", "Callback")
    assert isinstance(for_lightning(str(tmp_path / "run.pickle")), Base)
    assert torch.log == []


def test_composer_callback_captures_steps_and_phases(
    torch: Pretend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    framework(monkeypatch, "composer", "Callback")
    callback = for_composer(str(tmp_path / "run.pickle"), on="exit")
    state = types.SimpleNamespace(timestamp=types.SimpleNamespace(batch=2))
    callback.fit_start(state, None)
    torch.empty(MIB)
    for event in ("batch_start", "before_forward", "before_backward", "after_backward"):
        getattr(callback, event)(state, None)
    callback.capture.stop()
    parts = [("phase", each) for each in ("forward", "backward", "optimizer")]
    assert moments_of(tmp_path / "run-exit.pickle") == [("step", 3), *parts]


def test_install_without_the_variable_does_nothing(torch: Pretend) -> None:
    assert install() is None and torch.waiting == []


def test_environment_gives_the_options_of_the_capture(
    torch: Pretend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {"": "run.pickle", "_ON": "step,exit", "_STEPS": "2,3", "_MAX_ENTRIES": "7"}
    values |= {"_STACKS": "none", "_MAX_DISK": "1MiB"}
    for name, value in values.items():
        monkeypatch.setenv(f"ALLOCSIM_CAPTURE{name}", value)
    monkeypatch.chdir(tmp_path)
    installed = install()
    assert installed is not None and install() is installed, "once"
    assert (installed.on, installed.steps) == (("step", "exit"), frozenset({2, 3}))
    assert (installed.ring.max_entries, installed.ring.stacks) == (7, None)
    torch.empty(MIB)
    installed.stop()
    assert [path.name for path in tmp_path.iterdir()] == ["run-exit.pickle"]
    assert torch.log[0][1]["max_entries"] == 7


@pytest.mark.parametrize(("name", "value"), [("ON", "never"), ("STEPS", "x"), ("MAX_ENTRIES", "")])
def test_invalid_variable_is_logged_and_the_program_runs(
    torch: Pretend,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
    value: str,
) -> None:
    monkeypatch.setenv("ALLOCSIM_CAPTURE", "run.pickle")
    monkeypatch.setenv(f"ALLOCSIM_CAPTURE_{name}", value)
    installed = install()
    if value:
        assert installed is None and torch.waiting == []
        assert "install failed, the program goes on: ValueError" in caplog.text
    else:
        assert installed is not None and not caplog.records, "an empty variable is ignored"


_TORCH = """
import sys
from tests.capture.pretend import Pretend
module = Pretend()
vars(sys.modules[__name__]).update(vars(module), empty=module.empty)
"""
_PROGRAM = """
import sys
import torch
print("the program", sys.argv[1:])
torch.empty(1 << 20)
torch.empty(1 << 40)
"""


def test_environment_variable_captures_an_unmodified_program(tmp_path: Path) -> None:
    """Output, errors and exit code do not change, and the program's sitecustomize still runs."""
    (tmp_path / "torch.py").write_text(_TORCH)
    (tmp_path / "sitecustomize.py").write_text("print('its sitecustomize')\n")
    (tmp_path / "program.py").write_text(_PROGRAM)
    places = os.pathsep.join((str(tmp_path), str(ROOT)))
    environment = {**os.environ, "PYTHONPATH": places}
    program = [sys.executable, str(tmp_path / "program.py"), "--on", "its own"]
    plain = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    before = [sys.executable, "-m", "allocsim.capture", str(tmp_path / "run.pickle"), "--"]
    done = subprocess.run(
        [*before, *program], env=environment, capture_output=True, text=True, check=False
    )
    # The command itself is a Python program and has a sitecustomize.
    assert done.stdout == "its sitecustomize\n" + plain.stdout
    file = tmp_path / "run-oom.pickle"
    said = f"allocsim: out of memory; wrote {file}; next: allocsim explain {file}\n"
    assert done.stderr == said + plain.stderr
    assert done.returncode == plain.returncode == 1
    made = load(file).provenance
    assert made is not None and made.oom_text in plain.stderr
    assert made.command.endswith("--on 'its own'")


def test_missing_command_is_refused(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "allocsim.capture", "run.pickle", "--", "no-such-program"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "'no-such-program' is no command; expected a program to run\n"
