"""Which build of PyTorch wrote a recording: CUDA, or another whose snapshots are laid out alike.

Rule: a build is named by what only it has, names in stacks or the sizes of its blocks; without
either a recording is taken for CUDA's.  Ascend's adds 32 bytes to every request before it rounds,
so that none of its blocks is as large as a request of whole 512 bytes.  Source: semantics 1.2, and
recordings of NPUs that others published.
"""

from __future__ import annotations

from dataclasses import dataclass

from allocsim.state import INACTIVE
from allocsim.trace.frames import Frame
from allocsim.trace.recording import Recording

__all__ = ["Backend", "backend_of"]

_STEP = 512
_SMALL = 1 << 20
_LEAST_BLOCKS = 8


@dataclass(frozen=True, slots=True)
class Backend:
    """A build that is not CUDA's.

    name: "NPU", "XPU" or "ROCm".  evidence: what says so.  is_modelled: whether its allocator acts
    as CUDA's does, so far as is known.
    """

    name: str
    evidence: str
    is_modelled: bool


_BY_NAMES = (
    ("NPU", ("torch_npu", "c10_npu::"), False),
    ("XPU", ("/torch/xpu/", "c10::xpu::", "XPUCachingAllocator"), True),
    ("ROCm", ("c10::hip::", "HIPCachingAllocator"), True),
)


def backend_of(recording: Recording) -> Backend | None:
    """The build, None where nothing says that it is another than CUDA's."""
    for name, words, is_modelled in _BY_NAMES:
        found = next((f for f in recording.frame_table.frames if _names(f, words)), None)
        if found is not None:
            return Backend(name, "its stacks name it", is_modelled)
    if _adds_to_requests(recording):
        evidence = "its blocks are 512 bytes larger than requests of whole 512 bytes"
        return Backend("NPU", evidence, is_modelled=False)
    return None


def _names(frame: Frame, words: tuple[str, ...]) -> bool:
    path = frame.filename.replace("\\", "/")
    return any(word in path or word in frame.name for word in words)


def _adds_to_requests(recording: Recording) -> bool:
    """Whether every small block of a request of whole 512 bytes has 512 more.

    A small block is always split where 512 bytes are left, so that CUDA's have none.
    """
    asked = [
        block.size - block.requested_size
        for trace in recording.devices
        for segment in trace.segments
        if segment.is_small
        for block in segment.blocks
        if block.state != INACTIVE
        and 0 < block.requested_size < _SMALL
        and block.requested_size % _STEP == 0
    ]
    return len(asked) >= _LEAST_BLOCKS and all(more == _STEP for more in asked)
