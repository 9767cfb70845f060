"""A release's folder is complete or absent, whatever pip does.  Nothing is downloaded here."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from allocsim.errors import UnavailableError
from allocsim.phantom.wheel import cache_folder, cached_wheel, fetch_wheel, full_version

Run = Callable[..., "subprocess.CompletedProcess[str]"]
TORCH = {
    "torch/lib/libc10.so": "c10",
    "torch/lib/libc10_cuda.so": "c10_cuda",
    "torch/lib/libtorch_cuda.so": "far too large",
    "torch/include/c10/a.h": "// a",
    "torch/version.py": "cuda: Optional[str] = '12.4'\n",
    "torch-2.6.0.dist-info/METADATA": "Requires-Dist: nvidia-cuda-runtime-cu12 (==12.4.127)\n",
}
RUNTIME = {"nvidia/cuda_runtime/include/cuda.h": "// cuda"}
NVCC = {"nvidia/cuda_nvcc/include/crt/host_defines.h": "// crt", "nvidia/cuda_nvcc/bin/nvcc": ""}


def fake_pip(shelf: dict[str, dict[str, str]], asked: list[str]) -> Run:
    """Return a fake pip whose index is `shelf`, by the beginning of a requirement."""

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        requirement = next(word for word in command if "==" in word)
        python = command[command.index("--python-version") + 1]
        asked.append(f"{requirement} for {python}")
        place = Path(command[command.index("--dest") + 1])
        for start, files in shelf.items():
            if f"{requirement} for {python}".startswith(start):
                with zipfile.ZipFile(place / "some.whl", "w") as archive:
                    for name, text in files.items():
                        archive.writestr(name, text)
                return subprocess.CompletedProcess(command, 0, "", "")
        return subprocess.CompletedProcess(command, 1, "", "noise\nERROR: No matching one\n")

    return run


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("ALLOCSIM_CACHE", str(tmp_path))
    return tmp_path


def test_full_version_is_that_of_the_release() -> None:
    assert full_version("2.15") == "2.15.0"
    assert full_version("2.9.0") == "2.9.0"
    with pytest.raises(UnavailableError, match=r"^torch '\.\./x' is not a release; expected one"):
        full_version("../x")


def test_cache_root_is_that_of_the_environment(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cache_folder("2.15") == cache / "phantom" / "2.15.0"
    monkeypatch.delenv("ALLOCSIM_CACHE")
    expected = Path.home() / ".cache" / "allocsim" / "phantom" / "2.15.0"
    assert cache_folder("2.15.0") == expected


def test_fetch_keeps_the_allocator_and_the_headers(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    without_cuda = {"torch/version.py": "cuda = None\n"}
    shelf = {
        "torch==2.6.0 for 3.12": without_cuda,
        "torch==2.6.0 for 3.11": TORCH,
        "nvidia-cuda-runtime-cu12==12.4.127": RUNTIME,
        "nvidia-cuda-nvcc-cu12==12.4.*": NVCC,
    }
    monkeypatch.setattr(subprocess, "run", fake_pip(shelf, asked))
    assert cached_wheel("2.6") is None
    wheel = fetch_wheel("2.6")
    assert (wheel.torch, wheel.cuda, wheel.cuda_major, wheel.number) == ("2.6.0", "12.4", 12, 206)
    assert cached_wheel("2.6.0") == wheel
    assert {path.name for path in wheel.libraries.iterdir()} == {"libc10.so", "libc10_cuda.so"}
    includes = [
        (folder / name).exists()
        for folder, name in zip(wheel.includes, ("c10/a.h", "crt/host_defines.h"), strict=True)
    ]
    assert includes == [True, True]
    assert [path.name for path in (cache / "phantom").iterdir()] == ["2.6.0"]
    fetch_wheel("2.6")
    assert len(asked) == 4


def test_failed_fetch_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", fake_pip({"torch==2.6.0": TORCH}, []))
    with pytest.raises(UnavailableError) as caught:
        fetch_wheel("2.6")
    sentence = "pip could not download nvidia-cuda-runtime-cu12==12.4.127: ERROR: No matching one"
    assert str(caught.value) == sentence
    assert not list((cache / "phantom").iterdir())


def test_fetch_without_a_cuda_build_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = {"torch==2.6.0 for 3.12": {"torch/version.py": "cuda = None\n"}}
    monkeypatch.setattr(subprocess, "run", fake_pip(shelf, []))
    with pytest.raises(UnavailableError) as caught:
        fetch_wheel("2.6")
    assert str(caught.value).startswith(
        "no CUDA wheel of torch 2.6.0 is available (Python 3.12: a build without CUDA; "
    )


def test_wheel_with_outside_paths_is_refused(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hostile = {**TORCH, "torch/include/../../../../evil.h": "// evil"}
    monkeypatch.setattr(subprocess, "run", fake_pip({"torch==2.6.0": hostile}, []))
    with pytest.raises(UnavailableError, match="expected a path inside the wheel"):
        fetch_wheel("2.6")
    assert not list(cache.rglob("evil.h"))


def test_wheel_with_an_invalid_description_is_not_cached(cache: Path) -> None:
    folder = cache / "phantom" / "2.6.0"
    folder.mkdir(parents=True)
    (folder / "wheel.json").write_text("{")
    assert cached_wheel("2.6") is None


def test_fetch_uses_pip_of_the_running_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return subprocess.CompletedProcess(command, 1, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(UnavailableError, match="pip ended with 1"):
        fetch_wheel("2.6")
    assert commands[0][:4] == [sys.executable, "-m", "pip", "download"]
    assert "--no-deps" in commands[0]
    assert "--only-binary=:all:" in commands[0]
