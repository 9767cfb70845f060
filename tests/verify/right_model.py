"""Substitute for real PyTorch: the model without the mistake that a test adds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from allocsim.core import find_release
from allocsim.core.config import AllocatorConfig
from allocsim.errors import ConfigError, RefusedError
from allocsim.units import MIB
from allocsim.verify import RealAnswer, Script
from allocsim.verify.generator import make_script
from allocsim.verify.player import play

_RIGHT = AllocatorConfig.segment_size


def _wrong(config: AllocatorConfig, size: int) -> int:
    return 20 * MIB if size == 10 * MIB else _RIGHT(config, size)


MISTAKE = ("allocsim.core.config.AllocatorConfig.segment_size", _wrong)
"""Mistake: requests of exactly 10 MiB share segments of 20 MiB.  PyTorch separates them (1.4)."""


@dataclass
class RightModel:
    """Model with the interface of RealAllocator.

    conditions: `RealAnswer.conditions` of its results.
    """

    torch_version: str
    conditions: dict[str, Any] = field(default_factory=dict)

    def run(self, script: Script) -> RealAnswer:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(MISTAKE[0], _RIGHT)
            try:
                answer = play(script, self.torch_version, **self.conditions)
            except ConfigError as error:
                raise RefusedError(f"torch {self.torch_version} failed: {error}") from None
        stopped = None if answer.stopped is None else (answer.stopped[0], str(answer.stopped[1]))
        return RealAnswer(
            torch=self.torch_version,
            addresses=answer.addresses,
            stats=answer.stats,
            segments=answer.segments,
            trace=answer.trace,
            messages=answer.messages,
            stopped=stopped,
        )


@dataclass(frozen=True)
class RightSource:
    """Source of scripts and answers for cross-checks in tests."""

    release: str

    def open(self) -> RightModel:
        return RightModel(self.release)

    def script(self, real: object, seed: int) -> Script:  # noqa: ARG002
        return make_script(seed, find_release(self.release))
