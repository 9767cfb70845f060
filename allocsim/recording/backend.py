"""Detect which build of PyTorch wrote a recording: CUDA, XPU, ROCm or Ascend NPU.

Names in stacks or the sizes of blocks show which build it was.  Without such evidence the recording
is treated as written by a CUDA build.  torch_npu adds 32 bytes to every request before rounding, so
its blocks are never exactly as large as a request that is a multiple of 512 bytes.  The differences
between these allocators and CUDA's are taken from their source code of 2025 and 2026.  No XPU or
ROCm recording was available to check them, and the message for the user says so.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from allocsim.recording.frames import Frame, FrameTable
from allocsim.recording.recording import Recording

_STEP = 512
_SMALL = 1 << 20
_LEAST_BLOCKS = 8
_LEAST_SIZES = 3


@dataclass(frozen=True, slots=True)
class Backend:
    """Build of PyTorch for a device type other than CUDA.

    name: "NPU", "XPU" or "ROCm".
    evidence: reason for the detection, as a clause such as "its stacks name it".
    is_modelled: True if its allocator rounds and splits as CUDA's, so that a replay is valid.
    differs: clause that follows "its allocator" and names the differences from CUDA's.
    """

    name: str
    evidence: str
    is_modelled: bool
    differs: str


@dataclass(frozen=True, slots=True)
class _Build:
    """Known properties of a build.

    words: substrings of stack frames that only this build has.
    options: conf options that the build supports; None if it supports all of CUDA's.
    """

    name: str
    words: tuple[str, ...]
    is_modelled: bool
    differs: str
    options: frozenset[str] | None = None

    def seen(self, evidence: str) -> Backend:
        return Backend(self.name, evidence, self.is_modelled, self.differs)


_NPU = _Build(
    "NPU",
    ("torch_npu", "c10_npu::"),
    is_modelled=False,
    differs="adds 32 bytes to every request before it rounds, and has pages of 1 GiB and of its "
    "collectives besides PyTorch's",
)
_BUILDS = (
    _NPU,
    _Build(
        "XPU",
        ("/torch/xpu/", "c10::xpu::", "XPUCachingAllocator"),
        is_modelled=True,
        differs="rounds and splits as CUDA's, but reads no option beside expandable_segments and "
        "the memory fraction, and on a full device gives back all that is cached at once",
        options=frozenset({"expandable_segments", "per_process_memory_fraction"}),
    ),
    _Build(
        "ROCm",
        ("c10::hip::", "HIPCachingAllocator"),
        is_modelled=True,
        differs="is CUDA's source, built for HIP",
    ),
)


def backend_of(recording: Recording) -> Backend | None:
    """Return the build of PyTorch that wrote the recording; None for a CUDA build."""
    build = _named_in(recording.frame_table)
    if build is not None:
        return build.seen("its stacks name it")
    if _adds_to_requests(recording):
        return _NPU.seen("its blocks are 512 bytes larger than requests of whole 512 bytes")
    return None


def options_read(frames: FrameTable) -> frozenset[str] | None:
    """Return the conf options that the recording's build supports; None if it supports all.

    frames: stack frames of the recording, whose names show the build.
    """
    build = _named_in(frames)
    return None if build is None else build.options


def _named_in(frames: FrameTable) -> _Build | None:
    for build in _BUILDS:
        if any(_names(frame, build.words) for frame in frames.frames):
            return build
    return None


def _names(frame: Frame, words: tuple[str, ...]) -> bool:
    path = frame.filename.replace("\\", "/")
    return any(word in path or word in frame.name for word in words)


def _adds_to_requests(recording: Recording) -> bool:
    """Return True if torch_npu's extra bytes show in the sizes of small blocks.

    They do if each block for a request of a multiple of 512 bytes is 512 bytes larger than the
    request.  CUDA's allocator splits a small block whenever 512 bytes remain, so no CUDA block is
    that much too large unless roundup_power2_divisions is set.
    """
    settings = recording.settings
    if settings is not None and any(each > 1 for _, each in settings.roundup_power2_divisions):
        return False
    found = []
    for tiles in (trace.tiles for trace in recording.devices):
        if tiles is not None:
            asked = tiles.requested_size
            counts = tiles.is_small & tiles.is_active & (asked > 0) & (asked < _SMALL)
            counts &= asked % _STEP == 0
            found.append(np.stack((asked[counts], tiles.size[counts])))
    asked, size = np.concatenate(found or [np.empty((2, 0), dtype=np.int64)], axis=1)
    is_enough = len(asked) >= _LEAST_BLOCKS and len(np.unique(asked)) >= _LEAST_SIZES
    return is_enough and bool((size - asked == _STEP).all())
