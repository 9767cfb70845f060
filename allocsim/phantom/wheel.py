"""Download the compiled allocator of published PyTorch releases.

For each release, the cache has torch/lib/libc10*.so, torch/include, torch/version.py and CUDA's
headers (about 80 MiB).  No folder in the cache is left half-written.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from allocsim.errors import UnavailableError

PUBLISHED = {
    "2.1": "2.1.2",
    "2.2": "2.2.2",
    "2.3": "2.3.1",
    "2.4": "2.4.1",
    "2.5": "2.5.1",
    "2.6": "2.6.0",
    "2.7": "2.7.1",
    "2.8": "2.8.0",
    "2.9": "2.9.1",
    "2.10": "2.10.0",
    "2.11": "2.11.0",
    "2.12": "2.12.0",
    "2.13": "2.13.0",
    "2.14": "2.14.1",
    "2.15": "2.15.0",
}
"""Dictionary from a PyTorch release, such as "2.6", to the patch release to use, oldest first."""

PLANS_WITHOUT_DEVICE = (2, 8)
"""First PyTorch release whose cuDNN (9.8 and later) can plan a convolution without a GPU.

Earlier releases are made to use cuDNN's legacy interface, whose stub needs no workspace.
"""

_LAST_WITH_OLD_ABI = 206
"""`Wheel.number` of PyTorch 2.6, the last release with the C++ string ABI from before GCC 5."""

# Old wheels use old platform tags; pip takes the first that fits.
_PLATFORMS = ("manylinux_2_28", "manylinux_2_17", "manylinux2014", "manylinux1", "linux")
# The allocator is the same for every tag.  3.12 is first because a local index with CPU builds
# for the running interpreter rarely has them for another version.
_PYTHON_TAGS = ("3.12", "3.11", "3.10", "3.9")
_DESCRIPTION = "wheel.json"


@dataclass(frozen=True, slots=True)
class Wheel:
    """Libraries and headers of one PyTorch release in allocsim's cache folder.

    torch: PyTorch release, such as "2.15.0".
    cuda: CUDA release, such as "13.2".
    folder: folder that contains the libraries and headers.
    """

    torch: str
    cuda: str
    folder: Path

    @property
    def cuda_major(self) -> int:
        return int(self.cuda.split(".")[0])

    @property
    def number(self) -> int:
        """PyTorch release as one integer, such as 215 for 2.15; driver.cpp reads it."""
        major, minor = self.torch.split(".")[:2]
        return int(major) * 100 + int(minor)

    @property
    def has_old_abi(self) -> bool:
        """True if the libraries have the C++ string ABI from before GCC 5."""
        return self.number <= _LAST_WITH_OLD_ABI

    @property
    def libraries(self) -> Path:
        return self.folder / "torch" / "lib"

    @property
    def includes(self) -> tuple[Path, Path]:
        return self.folder / "torch" / "include", self.folder / "cuda" / "include"


def full_version(torch_version: str) -> str:
    """Return the patch release of a PyTorch release: "2.15.0" for "2.15" and for "2.15.0"."""
    version = PUBLISHED.get(torch_version, torch_version)
    if not re.fullmatch(r"\d+\.\d+\.\d+", version, re.ASCII):
        known = ", ".join(PUBLISHED)
        raise UnavailableError(f"torch {torch_version!r} is not a release; expected one of {known}")
    return version


def cache_root() -> Path:
    root = os.environ.get("ALLOCSIM_CACHE")
    return (Path(root) if root else Path.home() / ".cache" / "allocsim") / "phantom"


def cache_folder(torch_version: str) -> Path:
    return cache_root() / full_version(torch_version)


def cached_wheel(torch_version: str) -> Wheel | None:
    folder = cache_folder(torch_version)
    try:
        description = json.loads((folder / _DESCRIPTION).read_text())
        return Wheel(description["torch"], description["cuda"], folder)
    except (OSError, ValueError, KeyError):
        return None


def fetch_wheel(torch_version: str, say: Callable[[str], None] = lambda _: None) -> Wheel:
    """Return the files of a PyTorch release; download them with pip if the cache lacks them.

    say: function that is called with messages about the progress.
    """
    version = full_version(torch_version)
    if (wheel := cached_wheel(version)) is not None:
        return wheel
    try:
        return _fill(cache_folder(version), version, say)
    except OSError as error:
        raise UnavailableError(f"torch {version} cannot be kept in the cache: {error}") from None


def _fill(folder: Path, version: str, say: Callable[[str], None]) -> Wheel:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{version}-") as beside:
        growing = Path(beside) / version
        metadata = _fetch_torch(version, growing, say)
        cuda = _cuda_version(growing, version)
        _fetch_headers(metadata, cuda, growing, say)
        (growing / _DESCRIPTION).write_text(json.dumps({"torch": version, "cuda": cuda}))
        if folder.exists():
            shutil.rmtree(folder)
        growing.rename(folder)
    return Wheel(version, cuda, folder)


def _fetch_torch(version: str, folder: Path, say: Callable[[str], None]) -> str:
    refusals = []
    for tag in _PYTHON_TAGS:
        try:
            with _downloaded(f"torch=={version}", folder.parent, say, tag) as archive:
                names = archive.namelist()
                if "torch/lib/libc10_cuda.so" not in names:
                    refusals.append(f"Python {tag}: a build without CUDA")
                    continue
                for name in filter(_is_kept, names):
                    archive.extract(_inside(name), folder)
                return archive.read(next(n for n in names if n.endswith("/METADATA"))).decode()
        except UnavailableError as error:
            refusals.append(f"Python {tag}: {error}")
    raise UnavailableError(f"no CUDA wheel of torch {version} is available ({'; '.join(refusals)})")


def _is_kept(name: str) -> bool:
    library = name.startswith("torch/lib/libc10") and name.endswith(".so")
    return library or name.startswith("torch/include/") or name == "torch/version.py"


def _cuda_version(folder: Path, version: str) -> str:
    text = (folder / "torch" / "version.py").read_text()
    match = re.search(r"cuda(?:: Optional\[str\])? = '(\d+\.\d+)'", text)
    if match is None:
        raise UnavailableError(f"the wheel of torch {version} names no CUDA release")
    return match[1]


def _fetch_headers(metadata: str, cuda: str, folder: Path, say: Callable[[str], None]) -> None:
    major = int(cuda.split(".", maxsplit=1)[0])
    suffix = f"-cu{major}" if major < 13 else ""
    exact = re.search(rf"nvidia-cuda-runtime{suffix} ?\(?==([\d.]+)", metadata)
    runtime = exact[1] if exact else f"{cuda}.*"
    includes = folder / "cuda" / "include"
    # crt/ is in the compiler's wheel up to CUDA 12 and in a separate wheel from CUDA 13.
    compiler = "nvidia-cuda-nvcc-cu12" if suffix == "-cu12" else f"nvidia-cuda-crt{suffix}"
    for name, version in ((f"nvidia-cuda-runtime{suffix}", runtime), (compiler, f"{cuda}.*")):
        with _downloaded(f"{name}=={version}", folder.parent, say) as archive:
            for entry in archive.namelist():
                if "/include/" in entry and not entry.endswith("/"):
                    target = includes / _inside(entry.split("/include/", 1)[1])
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(archive.read(entry))
        if (includes / "crt" / "host_defines.h").exists():
            return
    raise UnavailableError(f"NVIDIA's wheels for CUDA {cuda} hold no crt/host_defines.h")


@contextmanager
def _downloaded(
    requirement: str, folder: Path, say: Callable[[str], None], python: str = "3.12"
) -> Iterator[zipfile.ZipFile]:
    say(f"downloading {requirement}")
    with tempfile.TemporaryDirectory(dir=folder) as place:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir"]
        command += ["--quiet", "--only-binary=:all:", "--implementation", "cp"]
        command += ["--python-version", python, "--dest", place, requirement]
        for name in _PLATFORMS:
            command += ["--platform", f"{name}_{platform.machine()}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
        wheels = list(Path(place).glob("*.whl"))
        if done.returncode != 0 or not wheels:
            errors = [line for line in done.stderr.splitlines() if "ERROR" in line]
            reason = errors[-1].strip() if errors else f"pip ended with {done.returncode}"
            raise UnavailableError(f"pip could not download {requirement}: {reason}")
        with zipfile.ZipFile(wheels[0]) as archive:
            yield archive


def _inside(name: str) -> str:
    # Without this check, a hostile wheel could write outside the cache.
    if ".." in Path(name).parts or Path(name).is_absolute():
        raise UnavailableError(f"a wheel contains {name!r}; expected a path inside the wheel")
    return name
