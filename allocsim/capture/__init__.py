"""Capture of PyTorch's memory history from inside the program.

    from allocsim.capture import capture

    with capture("run.pickle"):
        train()

Without a call of `capture`, a callback for a training library or environment variables start one.
A callback begins to record when it is created, so create it before the model moves to the device.
The environment variable ALLOCSIM_CAPTURE gives the path of the files; others, such as
ALLOCSIM_CAPTURE_STEPS, give the arguments of `capture`.

This package imports only the standard library and never imports torch itself: it waits until the
program imports it.  Errors of a capture are logged and do not stop the program.  The files have the
format of `allocsim record`.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

from allocsim.capture.recorder import quiet
from allocsim.capture.session import MAX_ENTRIES, Capture, capture

__all__ = [
    "MAX_ENTRIES", "Capture", "capture", "for_composer", "for_lightning", "for_transformers",
    "install",
]  # fmt: skip

PREFIX = "ALLOCSIM_CAPTURE"
_INSTALLED: list[Capture] = []


class _Capturing:
    def __init__(self, path: str, options: dict[str, Any]) -> None:
        self.capture = capture(path, **options)
        self.capture.start()


def for_transformers(path: str, **options: Any) -> Any:
    """Return a `TrainerCallback` for Hugging Face's transformers that captures to `path`.

    The Trainer calls no callback between forward and backward pass, so the capture cannot tell them
    apart.

    options: keyword arguments of `capture`.
    """
    base: Any = import_module("transformers").TrainerCallback

    class CaptureCallback(_Capturing, base):  # type: ignore[misc]
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            self.capture.start()

        def on_step_begin(self, _: Any, state: Any, *__: Any, **___: Any) -> None:
            self.capture.step(state.global_step + 1)

        def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
            self.capture.phase("optimizer")

    return CaptureCallback(path, options)


def for_lightning(path: str, **options: Any) -> Any:
    """Return a `Callback` for `lightning` or `pytorch_lightning` that captures to `path`.

    Each batch counts as a training step.

    options: keyword arguments of `capture`.
    """
    old = "pytorch_lightning" in sys.modules and "lightning" not in sys.modules
    base: Any = import_module("pytorch_lightning" if old else "lightning.pytorch").Callback

    class CaptureCallback(_Capturing, base):  # type: ignore[misc]
        def setup(self, *_: Any, **__: Any) -> None:
            self.capture.start()

        def on_train_batch_start(self, trainer: Any, *_: Any, **__: Any) -> None:
            self.capture.step(trainer.fit_loop.total_batch_idx + 1)
            self.capture.phase("forward")

        def on_before_backward(self, *_: Any, **__: Any) -> None:
            self.capture.phase("backward")

        def on_before_optimizer_step(self, *_: Any, **__: Any) -> None:
            self.capture.phase("optimizer")

        def on_exception(self, _: Any, __: Any, error: BaseException) -> None:
            self.capture.failed(error)

    return CaptureCallback(path, options)


def for_composer(path: str, **options: Any) -> Any:
    """Return a `Callback` for MosaicML's Composer that captures to `path`.

    Each batch counts as a training step.

    options: keyword arguments of `capture`.
    """
    base: Any = import_module("composer").Callback

    class CaptureCallback(_Capturing, base):  # type: ignore[misc]
        def fit_start(self, *_: Any) -> None:
            self.capture.start()

        def batch_start(self, state: Any, _: Any) -> None:
            self.capture.step(int(state.timestamp.batch) + 1)

        def before_forward(self, *_: Any) -> None:
            self.capture.phase("forward")

        def before_backward(self, *_: Any) -> None:
            self.capture.phase("backward")

        def after_backward(self, *_: Any) -> None:
            self.capture.phase("optimizer")

    return CaptureCallback(path, options)


@quiet
def install() -> Capture | None:
    """Start a capture of this program that lasts to its end, with options from the environment.

    Return the capture; None if ALLOCSIM_CAPTURE is not set or a variable is invalid.
    """
    path = os.environ.get(PREFIX)
    if not path or _INSTALLED:
        return _INSTALLED[0] if _INSTALLED else None
    installed = capture(path, **_options())
    installed.start()
    _INSTALLED.append(installed)
    return installed


def _options() -> dict[str, Any]:
    names = ("on", "steps", "max_entries", "stacks", "max_disk")
    variables = {name: os.environ.get(f"{PREFIX}_{name.upper()}") for name in names}
    options: dict[str, Any] = {name: text for name, text in variables.items() if text}
    if "on" in options:
        options["on"] = options["on"].split(",")
    if "steps" in options:
        numbers = [int(text) for text in options["steps"].split(",")]
        options["steps"] = numbers if len(numbers) > 1 else numbers[0]
    if "max_entries" in options:
        options["max_entries"] = int(options["max_entries"])
    if options.get("stacks") == "none":
        options["stacks"] = None
    return options
