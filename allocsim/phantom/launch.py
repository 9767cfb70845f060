"""Set the environment variables with which an unmodified program finds a phantom GPU.

Rule: the program and its PyTorch are not changed.  One variable preloads the stub libraries, and
others describe the phantom GPU, so child processes find it too.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import astuple, dataclass
from functools import partial

from allocsim.phantom.build import Stubs, UnavailableError, build_once, build_stubs, digest_of
from allocsim.phantom.gpu import Gpu
from allocsim.phantom.wheel import PLANS_WITHOUT_DEVICE, cache_root

BASE_ADDRESS = 0x7000_0000_0000
"""First address of device memory, far above the addresses of host memory."""

_PATIENCE_S = 120
# The script reads torch's version.py without importing torch, which takes seconds.
_NO_TORCH = "null"
_FIND = """
import importlib.util, json, os, runpy
spec = importlib.util.find_spec("torch")
if spec is None or not spec.origin:
    print("null")
else:
    place = os.path.join(os.path.dirname(spec.origin), "version.py")
    version = runpy.run_path(place)
    print(json.dumps([version["__version__"], version.get("cuda"), version.get("hip")]))
"""


@dataclass(frozen=True, slots=True)
class TorchInstall:
    """PyTorch installation of one interpreter.

    python: path of the interpreter.
    version: such as "2.15.0".
    cuda: release of CUDA, such as "13.2".
    """

    python: str
    version: str
    cuda: str

    @property
    def release(self) -> str:
        """Major and minor version, such as "2.15"."""
        return ".".join(self.version.split(".")[:2])

    @property
    def cuda_major(self) -> int:
        return int(self.cuda.split(".")[0])


def _answer_in(output: str) -> tuple[str, str, str] | None:
    """Return the releases of PyTorch, CUDA and HIP in the last line of `output`, or None."""
    try:
        version, cuda, hip = json.loads(output.splitlines()[-1])
    except (IndexError, ValueError, TypeError):
        return None
    return version, cuda, hip


def find_torch(python: str) -> TorchInstall:
    """Return the PyTorch that `python` would import.

    Raises UnavailableError if there is none or it was built without CUDA.
    """
    try:
        done = subprocess.run(  # noqa: S603
            [python, "-c", _FIND], capture_output=True, text=True, check=False, timeout=_PATIENCE_S
        )
    except subprocess.TimeoutExpired:
        raise UnavailableError(
            f"{python} did not say within {_PATIENCE_S} s whether it has PyTorch"
        ) from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise UnavailableError(f"{python} cannot be started ({why}); expected a Python") from None
    if done.returncode or done.stdout.strip() == _NO_TORCH:
        raise UnavailableError(f"{python} has no PyTorch; expected a CUDA build of torch")
    answer = _answer_in(done.stdout)
    if answer is None:
        raise UnavailableError(f"{python} does not answer as a Python does; expected a Python")
    version, cuda, hip = answer
    if not cuda:
        kind = "ROCm" if hip else "CPU-only"
        raise UnavailableError(
            f"{python} has torch {version}, a {kind} build; expected a CUDA build"
        )
    return TorchInstall(python, version.split("+")[0], cuda)


def phantom_environment(
    torch: TorchInstall,
    gpu: Gpu,
    *,
    address_policy: str = "driver",
    work: str = "when-waited",
    devices: int = 1,
) -> dict[str, str]:
    """Return the variables to add to a program's environment; build the stubs if needed.

    address_policy: "driver" (the addresses that the CUDA driver chooses), "bump" (no address is
        used again) or "firstfit" (the lowest free address).
    work: time when the work of a stream completes: "when-waited" (at a synchronisation, as late as
        possible) or "at-once" (as early as possible).
    devices: number of equal phantom GPUs; a process can use one.
    Raises UnavailableError if the stubs cannot be built.
    """
    stubs = _stubs(torch.cuda_major)
    variables = {
        "LD_PRELOAD": f"{stubs.preload} {os.environ.get('LD_PRELOAD', '')}".rstrip(),
        "ALLOCSIM_PHANTOM_MEMORY": str(gpu.memory),
        "ALLOCSIM_PHANTOM_CONTEXT": str(gpu.context_memory),
        "ALLOCSIM_PHANTOM_CONTEXT_CHUNKS": gpu.context_chunks,
        "ALLOCSIM_PHANTOM_POLICY": address_policy,
        "ALLOCSIM_PHANTOM_BASE": str(BASE_ADDRESS),
        "ALLOCSIM_PHANTOM_WORK": work,
        "ALLOCSIM_PHANTOM_NAME": gpu.name,
        "ALLOCSIM_PHANTOM_CAPABILITY": ".".join(map(str, gpu.capability)),
        "ALLOCSIM_PHANTOM_MULTIPROCESSORS": str(gpu.multiprocessors),
        "ALLOCSIM_PHANTOM_DEVICES": str(devices),
        "ALLOCSIM_PHANTOM_LIMITS": " ".join(map(str, astuple(gpu.limits))),
        # The user's value may hide all devices.
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(devices))),
        # Triton links its launchers to the driver and would otherwise search the system for it.
        "TRITON_LIBCUDA_PATH": str(stubs.folder),
        # Servers load NCCL themselves, with ctypes.
        "VLLM_NCCL_SO_PATH": str(stubs.nccl),
        "SGLANG_NCCL_SO_PATH": str(stubs.nccl),
    }
    if tuple(map(int, torch.version.split(".")[:2])) < PLANS_WITHOUT_DEVICE:
        variables["TORCH_CUDNN_V8_API_DISABLED"] = "1"
    return variables


def _stubs(cuda_major: int) -> Stubs:
    """Return the compiled stubs for a CUDA release; build them if the cache lacks them."""
    folder = cache_root() / "stubs" / f"cuda{cuda_major}-{digest_of(str(cuda_major))}"
    build_once(folder, partial(build_stubs, cuda_major=cuda_major))
    return Stubs.in_folder(folder, cuda_major)
