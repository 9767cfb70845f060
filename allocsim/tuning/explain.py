"""Why a request failed, from an out-of-memory text or a recording.

Rule: what is explained is told from the type of what is given; a text is never opened as a file.
"""

from __future__ import annotations

from typing import overload

from allocsim.analysis import Verdict, judge_text
from allocsim.errors import ConfigError
from allocsim.trace import Recording
from allocsim.tuning.explanation import DeviceExplanation, explain_recording
from allocsim.units import parse_size

__all__ = ["explain"]


@overload
def explain(
    source: str,
    conf: str | None = None,
    *,
    torch_version: str | None = None,
    device_memory: int | str | None = None,
) -> tuple[Verdict, ...]: ...


@overload
def explain(
    source: Recording,
    conf: str | None = None,
    *,
    torch_version: str | None = None,
    device_memory: int | str | None = None,
) -> tuple[DeviceExplanation, ...]: ...


def explain(
    source: str | Recording,
    conf: str | None = None,
    *,
    torch_version: str | None = None,
    device_memory: int | str | None = None,
) -> tuple[Verdict, ...] | tuple[DeviceExplanation, ...]:
    """A verdict on every out-of-memory error in a text, at least one; or a recording's devices.

    conf: of a text PYTORCH_CUDA_ALLOC_CONF as it was set, of a recording the settings to replay
    under.  torch_version: the release ("2.9.1"), default what the wording or the recording tells.
    device_memory: bytes or "24GiB"; of a text for one that lacks the card's memory, or another
    card's to compare with.
    Raises ConfigError for an option string, release or size that is none, RecordingError for a
    recording with nothing to replay.
    """
    if isinstance(source, Recording):
        _, devices = explain_recording(
            source, conf, torch_version=torch_version, device_memory=device_memory
        )
        return devices
    if not isinstance(source, str):
        raise ConfigError(
            f"explain takes an error's text or a recording, not {type(source).__name__}"
        )
    try:
        memory = None if device_memory is None else parse_size(device_memory)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return judge_text(source, conf, torch_version=torch_version, device_memory=memory)
