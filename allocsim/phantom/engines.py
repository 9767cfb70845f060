"""Serving engines that can be started on a phantom GPU.

Rule: a program starts each engine from the engine's own interpreter.  It prints a line once the
engine has accepted its arguments, and a line once it is ready for requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from allocsim.errors import ConfigError
from allocsim.phantom import start_vllm

_HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Starter:
    """Program that starts an engine.

    name: name of the engine, for people.
    script: path of the program; its arguments are a folder with config.json, and those of the
        engine's command.
    configured, ready: lines that the program prints.
    """

    name: str
    script: Path
    configured: str
    ready: str


_STARTERS = {
    "vllm": Starter("vLLM", _HERE / "start_vllm.py", start_vllm.CONFIGURED, start_vllm.READY),
}


def starter_of(server: str) -> Starter:
    """Return the program that starts `server`; raise ConfigError if there is none."""
    if server not in _STARTERS:
        raise ConfigError(
            f"{server} cannot be started on a phantom GPU; expected {', '.join(_STARTERS)}"
        )
    return _STARTERS[server]
