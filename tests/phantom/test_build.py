"""Errors for missing requirements are one sentence, and a failed build leaves no files."""

from __future__ import annotations

import platform
import shutil
from pathlib import Path

import pytest

from allocsim.errors import UnavailableError
from allocsim.phantom.build import STUB, build_stubs, find_compiler
from allocsim.phantom.wheel import Wheel
from allocsim.verify.real import build_driver


def test_find_compiler_names_the_missing_compilers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(UnavailableError, match=r"^the phantom GPU needs a compiler; looked for"):
        build_stubs(tmp_path, 13)
    with pytest.raises(UnavailableError, match=r"looked for c\+\+, g\+\+, clang\+\+$"):
        build_driver(Wheel("2.15.0", "13.2", tmp_path))


def test_find_compiler_needs_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    with pytest.raises(UnavailableError, match=r"needs Linux's shared libraries; this is Darwin$"):
        find_compiler("cc")


def test_failed_compilation_is_one_sentence(tmp_path: Path) -> None:
    try:
        find_compiler("c++", "g++", "clang++")
    except UnavailableError as error:
        pytest.skip(str(error))
    wheel = Wheel("2.15.0", "13.2", tmp_path)  # holds no headers
    with pytest.raises(UnavailableError, match="could not compile the stub: ") as caught:
        build_driver(wheel)
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "build").iterdir())


def test_stub_sources_are_in_the_package() -> None:
    names = {path.name for path in STUB.iterdir()}
    assert {"device.h", "device.c", "cudart.c", "cuda.c", "nvml.c"} <= names
