"""Search for installations of PyTorch, without importing it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from importlib.machinery import PathFinder
from importlib.util import find_spec

from allocsim.errors import UnavailableError

_PACKAGES = ("transformers", "torchvision", "peft", "bitsandbytes", "accelerate")
_PATIENCE_S = 120
# The script reads torch's version.py without importing torch, which takes seconds.
_NO_TORCH = "null"
_FIND = f"""
import importlib.util
spec = importlib.util.find_spec("torch")
if spec is None or not spec.origin:
    print("null")
else:
    import json, os, runpy
    place = os.path.join(os.path.dirname(spec.origin), "version.py")
    version = runpy.run_path(place)
    lacks = [name for name in {_PACKAGES!r} if importlib.util.find_spec(name) is None]
    print(json.dumps([version["__version__"], version.get("cuda"), version.get("hip"), lacks]))
"""


@dataclass(frozen=True, slots=True)
class TorchInstall:
    """PyTorch installation of one interpreter.

    python: path of the interpreter.
    version: version of PyTorch.
    cuda: release of CUDA.
    lacks: packages that are not installed, although programs of `allocsim fit` may import them.
    """

    python: str
    version: str
    cuda: str
    lacks: tuple[str, ...] = ()

    @property
    def release(self) -> str:
        return ".".join(self.version.split(".")[:2])

    @property
    def cuda_major(self) -> int:
        return int(self.cuda.split(".")[0])


_AHEAD: dict[tuple[str, str | None], Future[TorchInstall]] = {}


def begin_to_find_torch(python: str | None = None) -> list[str]:
    """Start to search for PyTorch in the background, so that a later `find_torch` is faster.

    Return the paths of the searched interpreters.

    python: path of the only interpreter to search; None for this one and `python3` on the PATH.
    """
    places = [python] if python is not None else [sys.executable, shutil.which("python3")]
    named = list(dict.fromkeys(filter(None, places)))
    pool = ThreadPoolExecutor(len(named))
    path = os.environ.get("PYTHONPATH")
    for place in named:
        _AHEAD[place, path] = _AHEAD.get((place, path)) or pool.submit(_find_torch, place)
    pool.shutdown(wait=False)
    return named


def find_torch(python: str) -> TorchInstall:
    ahead = _AHEAD.pop((python, os.environ.get("PYTHONPATH")), None)
    return _find_torch(python) if ahead is None else ahead.result()


def _find_torch(python: str) -> TorchInstall:
    if python == sys.executable and not _may_have_torch():
        raise _without_torch(python)
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
        raise _without_torch(python)
    try:
        version, cuda, hip, lacks = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError, TypeError):
        text = f"{python} does not answer as a Python does; expected a Python"
        raise UnavailableError(text) from None
    if not cuda:
        kind = "ROCm" if hip else "CPU-only"
        raise UnavailableError(
            f"{python} has torch {version}, a {kind} build; expected a CUDA build"
        )
    return TorchInstall(python, version.split("+")[0], cuda, tuple(lacks))


def _may_have_torch() -> bool:
    # For this interpreter, no process is needed to find out that torch is missing.
    added = ["", *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    found = "torch" in sys.modules or find_spec("torch") or PathFinder.find_spec("torch", added)
    return bool(found)


def _without_torch(python: str) -> UnavailableError:
    return UnavailableError(f"{python} has no PyTorch; expected a CUDA build of torch")
