"""Synthetic recordings: simulated programs, recorded as PyTorch would record them.

Every function in `KINDS` returns a `Recording` of one device.  Equal arguments give equal entries.
A replay of such a recording reproduces its addresses, because the PyTorch release and the device
memory are recorded too.
"""

from collections.abc import Callable

from allocsim.recording import Recording
from allocsim.workload.known_program import Played, peak_of_known, play_known
from allocsim.workload.programs import fragments, graphs, oom, server, streams, training
from allocsim.workload.recorder import SUFFIXES, KeptHistory, Recorder, write_recording
from allocsim.workload.stretches import EMPTY_CACHE, KnownProgram

__all__ = [
    "EMPTY_CACHE", "KINDS", "KeptHistory", "KnownProgram", "Played", "Recorder", "SUFFIXES",
    "fragments", "graphs", "oom", "peak_of_known", "play_known", "server", "streams", "training",
    "write_recording",
]  # fmt: skip

KINDS: dict[str, Callable[..., Recording]] = {
    "training": training,
    "server": server,
    "fragments": fragments,
    "oom": oom,
    "streams": streams,
    "graphs": graphs,
}
"""Functions that simulate a program, keyed by the kind of program in `allocsim synth KIND`."""
