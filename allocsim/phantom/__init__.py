"""The GPU that is not there: PyTorch's libraries over a device that keeps books.

Nothing here imports torch.  The stub libraries in `stub/` stand where CUDA's would; `record` puts
an unmodified program over them, `build` and `wheel` bring them and a release's libraries together.
"""

from allocsim.phantom.build import (
    COMMON_OPTIONS,
    ORIGIN,
    STUB,
    Stubs,
    build_once,
    build_stubs,
    compile_source,
    digest_of,
    find_compiler,
)
from allocsim.phantom.errors import PhantomError, RefusedError, ScriptError, UnavailableError
from allocsim.phantom.gpu import Gpu, find_gpu
from allocsim.phantom.launch import find_torch, phantom_environment
from allocsim.phantom.record import Program, Recorded, has_gpu, record
from allocsim.phantom.wheel import Wheel, cached_wheel, fetch_wheel, full_version

__all__ = [
    "COMMON_OPTIONS",
    "Gpu",
    "ORIGIN",
    "PhantomError",
    "Program",
    "Recorded",
    "RefusedError",
    "STUB",
    "ScriptError",
    "Stubs",
    "UnavailableError",
    "Wheel",
    "build_once",
    "build_stubs",
    "cached_wheel",
    "compile_source",
    "digest_of",
    "fetch_wheel",
    "find_compiler",
    "find_gpu",
    "find_torch",
    "full_version",
    "has_gpu",
    "phantom_environment",
    "record",
]
