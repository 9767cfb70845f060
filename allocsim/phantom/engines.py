"""Programs that start serving engines on a simulated GPU, and the CUDA driver's memory for them.

All sizes are measured, in public logs and in runs of vLLM on an H100.  docs/evidence/serving.md
names the source of each size.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from allocsim.errors import ConfigError
from allocsim.phantom import start_vllm
from allocsim.phantom.build import build_once
from allocsim.phantom.gpu import Gpu
from allocsim.phantom.wheel import cache_root
from allocsim.units import KIB, MIB

_HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Starter:
    """Program of this package that starts a serving engine, such as vLLM.

    name: name of the engine.
    script: path of the program.  Its arguments are a folder with config.json; the prompts to serve
        as "number,prompt tokens,generated tokens", or ""; then the arguments of the engine.
    split: the engine's option for the number of GPUs that share each layer.
    fraction: the engine's option for the share of the GPU's memory that it takes.
    configured: line that the program prints when the engine has read its options.
    ready: line that the program prints when the engine can take prompts.
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
    "sglang": Starter("SGLang", _HERE / "start_sglang.py", "--tp-size", "mem-fraction-static"),
}


def described_model(name: str, files: Mapping[str, bytes], python: str) -> Path:
    """Write files of a model, such as config.json, to a folder for an engine; return the folder.

    Equal arguments give the same path, because engines cache compiled code under the model's path.

    name: name of the folder.
    files: contents of each file, keyed by file name.
    python: interpreter of the engine.  The path depends on it, because the engine's program adds
        the model's class to config.json, which depends on the release of transformers.
    """
    digest = hashlib.sha256(repr((python, sorted(files.items()))).encode()).hexdigest()[:16]

    def write(folder: Path) -> None:
        for file, content in files.items():
            (folder / file).write_bytes(content)

    folder = cache_root() / "engines" / "models" / digest / name
    build_once(folder, write)
    return folder


def starter_of(server: str) -> Starter:
    if server not in _STARTERS:
        raise ConfigError(
            f"{server} cannot be started on a phantom GPU; expected {', '.join(_STARTERS)}"
        )
    return _STARTERS[server]


@dataclass(frozen=True, slots=True)
class DriverCharges:
    """Bytes of device memory that the CUDA driver takes for kernels and CUDA graphs.

    modules: bytes for the modules (binaries with kernels) of PyTorch, cuBLAS and the engine, taken
        when a process loads its first kernel.
    kernel: bytes for each loaded kernel.
    node: bytes for each node of a CUDA graph.
    graph: minimum bytes for a CUDA graph, taken if its nodes need less.
    collective: additional bytes for a CUDA graph that contains collectives of NCCL.
    """

    modules: int = 0
    kernel: int = 0
    node: int = 0
    graph: int = 0
    collective: int = 0

    @property
    def variable(self) -> str:
        """All fields as text, for the environment variable ALLOCSIM_PHANTOM_DRIVER of the stubs."""
        return f"{self.kernel} {self.node} {self.collective} {self.modules} {self.graph}"

    def taken(self, counts: Mapping[str, int]) -> int:
        """Return the bytes that the driver takes for the kernels and graphs of one process.

        counts: numbers of "kernels" and "collective_graphs", and "graph_bytes", as returned by
            `at_exit.driver_counts`.  "graph_bytes" assumes 4 KiB per node of a CUDA graph; it is
            scaled to `node`.
        """
        graphs = counts.get("graph_bytes", 0) * self.node // _NODE[1]
        collectives = counts.get("collective_graphs", 0) * self.collective
        kernels = counts.get("kernels", 0)
        return bool(kernels) * self.modules + kernels * self.kernel + graphs + collectives


# Bytes of each as (low, likely, high).
_KERNEL = (0, 128 * KIB, 512 * KIB)
_NODE = (3 * KIB, 4 * KIB, 5 * KIB)
_GRAPH = 128 * KIB
_COLLECTIVE = (690 * KIB, 770 * KIB, 850 * KIB)


def _modules(gpu: Gpu, cuda_major: int) -> tuple[int, int, int]:
    if cuda_major < 13:
        likely = 8 * MIB + 256 * gpu.threads
    elif gpu.capability == (8, 0):  # 26 logs of one machine; the rule below would be 182 MiB
        return 20 * MIB, 30 * MIB, 182 * MIB
    else:
        likely = 20 * MIB + 768 * gpu.threads
    return likely * 3 // 5, likely, likely * 5 // 4


def charges_of(gpu: Gpu, cuda_major: int, *, has_nccl: bool) -> tuple[DriverCharges, ...]:
    """Return three estimates of the memory that the driver takes on a GPU: low, likely and high.

    cuda_major: CUDA release, such as 13.
    has_nccl: True if several GPUs exchange data by NCCL, and not by a kernel of the engine.
    """
    sizes = zip(_modules(gpu, cuda_major), _KERNEL, _NODE, _COLLECTIVE, strict=True)
    charges = tuple(
        DriverCharges(module, kernel, node, _GRAPH, collective)
        for module, kernel, node, collective in sizes
    )
    return charges if has_nccl else tuple(replace(each, collective=0) for each in charges)
