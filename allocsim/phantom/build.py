"""Compile the stubs of the CUDA libraries (the phantom GPU) with the system's C compiler.

The folder of the compiled stubs is named after a digest of the sources and options, so they are
compiled again only if these change.
"""

from __future__ import annotations

import hashlib
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from allocsim.errors import UnavailableError

STUB = Path(__file__).parent / "stub"
COMMON_OPTIONS = ("-O2", "-Wall", "-Wextra")
_SHARED = (*COMMON_OPTIONS, "-std=gnu11", "-fPIC", "-shared")
_DNN = (
    "dnn.c",
    "dnn_attention.c",
    "dnn_backend.c",
    "dnn_conv.c",
    "dnn_installed.c",
    "dnn_norm.c",
)
ORIGIN = "-Wl,-rpath,$ORIGIN"


@dataclass(frozen=True, slots=True)
class Stubs:
    """Paths of the stubs of CUDA's libraries for one CUDA release, all in `folder`.

    device: library that counts the memory of the phantom GPU; the other stubs call it.
    cudart, cuda, nvml: stubs of the CUDA runtime, the CUDA driver and NVML.
    blas, dnn, math, nccl: preloaded stubs; the program calls their functions in place of those of
        cuBLAS, cuDNN, other CUDA libraries and NCCL.
    """

    folder: Path
    device: Path
    cudart: Path
    cuda: Path
    nvml: Path
    blas: Path
    dnn: Path
    math: Path
    nccl: Path

    @classmethod
    def in_folder(cls, folder: Path, cuda_major: int) -> Stubs:
        return cls(
            folder,
            device=folder / "libphantom.so",
            cudart=folder / f"libcudart.so.{'11.0' if cuda_major == 11 else cuda_major}",
            cuda=folder / "libcuda.so.1",
            nvml=folder / "libnvidia-ml.so.1",
            blas=folder / "libphantom-blas.so",
            dnn=folder / "libphantom-dnn.so",
            math=folder / "libphantom-math.so",
            nccl=folder / "libphantom-nccl.so",
        )

    @property
    def preload(self) -> str:
        libraries = (self.device, self.cudart, self.cuda, self.nvml)
        return " ".join(map(str, (*libraries, self.blas, self.dnn, self.math, self.nccl)))


def find_compiler(*names: str) -> str:
    if platform.system() != "Linux":
        raise UnavailableError(
            f"the phantom GPU needs Linux's shared libraries; this is {platform.system()}"
        )
    for name in names:
        if path := shutil.which(name):
            return path
    raise UnavailableError(f"the phantom GPU needs a compiler; looked for {', '.join(names)}")


def compile_source(command: list[str]) -> None:
    """Run a compiler command.

    Raises UnavailableError, with the first error that the compiler prints, if it fails.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if "error" in line]
        reason = (errors or done.stderr.splitlines() or ["no reason given"])[0]
        raise UnavailableError(f"{Path(command[0]).name} could not compile the stub: {reason}")


def build_stubs(folder: Path, cuda_major: int) -> Stubs:
    """Compile the stub libraries into `folder`; this needs only a C compiler."""
    compiler = find_compiler("cc", "gcc", "clang")
    stubs = Stubs.in_folder(folder, cuda_major)
    soname = stubs.cudart.name
    # PyTorch's libraries expect the runtime's symbols in a version node named after the soname.
    versions = folder / "cudart.map"
    versions.write_text(f"{soname} {{ global: *; }};\n")
    over_device = [str(stubs.device), ORIGIN]
    runtime = [f"-DPHANTOM_CUDA={cuda_major}", f"-Wl,--version-script={versions}"]
    for library, sources, extra in (
        (stubs.device, ("device.c", "arena.c", "reads.c", "host.c"), ["-pthread"]),
        (stubs.cudart, ("cudart.c", "launch.c", "graph.c"), [*runtime, *over_device]),
        (stubs.cuda, ("cuda.c",), over_device),
        (stubs.nvml, ("nvml.c",), over_device),
        (stubs.blas, ("blas.c",), []),
        (stubs.dnn, _DNN, ["-pthread", *over_device]),
        (stubs.math, ("solver.c", "fft.c"), over_device),
        (stubs.nccl, ("nccl.c",), over_device),
    ):
        name = f"-Wl,-soname,{library.name}"
        target = ["-o", str(library), *(str(STUB / source) for source in sources)]
        compile_source([compiler, *_SHARED, name, *target, *extra, "-ldl"])
    # Programs that link to the driver themselves (Triton's launchers) use the unversioned name.
    (folder / "libcuda.so").symlink_to(stubs.cuda.name)
    return stubs


def digest_of(name: str, *more: Path) -> str:
    digest = hashlib.sha256(name.encode())
    for source in (*sorted(STUB.iterdir()), Path(__file__), *more):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def build_once(folder: Path, build: Callable[[Path], object]) -> None:
    """Create `folder` with the contents that `build` writes; do nothing if it exists.

    Several processes may do this at the same time, because `build` gets a temporary folder, which
    is then renamed.
    """
    if folder.exists():
        return
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as beside:
            growing = Path(beside) / folder.name
            growing.mkdir()
            build(growing)
            growing.rename(folder)
    except OSError as error:
        # If another process was faster, its result is used; it is the same.
        if not folder.exists():
            raise UnavailableError(f"nothing can be built in {folder}: {error}") from None
