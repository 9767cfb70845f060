"""Every kind of synthetic recording, by name."""

from __future__ import annotations

from collections.abc import Callable

from allocsim.trace import Recording
from allocsim.workload.fragments import fragments
from allocsim.workload.graphs import graphs
from allocsim.workload.oom import oom
from allocsim.workload.server import server
from allocsim.workload.streams import streams
from allocsim.workload.training import training

__all__ = ["KINDS"]

KINDS: dict[str, Callable[..., Recording]] = {
    "training": training,
    "server": server,
    "fragments": fragments,
    "oom": oom,
    "streams": streams,
    "graphs": graphs,
}
"""Every kind by the name that `allocsim synth` knows it under."""
