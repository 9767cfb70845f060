"""Serving engines that can be started on a phantom GPU, each with the engine's own interpreter."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from allocsim.errors import ConfigError
from allocsim.phantom import start_vllm

_HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Starter:
    """Program that starts an engine.

    script: path of the program; its arguments are a folder with config.json, the requests to play
        as "number,prompt,decode" or "", and the arguments of the engine's command.
    configured, ready: lines that the program prints.
    split: option with the number of cards that share each layer; "" if only one card is possible.
    fraction: option with the share of the card that the engine takes.
    """

    name: str
    script: Path
    split: str
    fraction: str
    configured: str = start_vllm.CONFIGURED
    ready: str = start_vllm.READY


_STARTERS = {
    "vllm": Starter(
        "vLLM", _HERE / "start_vllm.py", "--tensor-parallel-size", "gpu-memory-utilization"
    ),
    "sglang": Starter("SGLang", _HERE / "start_sglang.py", "", "mem-fraction-static"),
}


def starter_of(server: str) -> Starter:
    if server not in _STARTERS:
        raise ConfigError(
            f"{server} cannot be started on a phantom GPU; expected {', '.join(_STARTERS)}"
        )
    return _STARTERS[server]
