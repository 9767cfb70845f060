"""Callbacks that capture a run of transformers, Lightning or Composer, with its training steps.

Rule: a framework is imported only when its callback is created.  Recording begins at that moment,
so create the callback before the model moves to the device.  Recording continues after training
until the program ends, so an evaluation is recorded too.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from allocsim.capture.session import capture


class _Capturing:
    def __init__(self, path: str, options: dict[str, Any]) -> None:
        self.capture = capture(path, **options)
        self.capture.start()


def for_transformers(path: str, **options: Any) -> Any:
    """Return a `TrainerCallback` for Hugging Face's transformers that captures to `path`.

    options: keyword arguments of `capture`.  Forward and backward pass are one phase, because the
        Trainer calls no callback between them.
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

    A step is a batch.  options: keyword arguments of `capture`.
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

    A step is a batch.  options: keyword arguments of `capture`.
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
