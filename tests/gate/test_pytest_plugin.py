"""Marks of the pytest plugin, with real PyTorch if available, and no cost for unmarked tests."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from importlib import import_module
from importlib.metadata import distribution
from pathlib import Path

import pytest

from tests.pythons import NEEDS_TORCH, PYTHONS

ROOT = Path(__file__).parents[2]
NEEDED = ("pytest", "pluggy", "iniconfig", "packaging", "pygments", "sortedcontainers", "rich")
"""Pure Python packages that an interpreter with PyTorch may lack."""

PLAIN = """
import sys
def test_plain():
    heavy = {"numpy", "torch", "allocsim.core", "allocsim.analysis"} & set(sys.modules)
    assert not heavy
"""
MARKED = """
import pytest

@pytest.fixture
def model():
    import torch
    return torch.nn.Linear(1000, 1000).cuda()

@pytest.mark.limit_reserved("2GiB")
def test_fits(model):
    import torch
    model(torch.zeros(64, 1000, device="cuda")).sum().backward()

@pytest.mark.allocsim(max_allocated="20MiB", gpu="RTX 4090")
class TestOfAClass:
    @pytest.mark.parametrize("size", [10, 90])
    def test_sizes(self, size):
        import torch
        print("it is", torch.cuda.get_device_name())
        grows(size)

def grows(size):
    import torch
    torch.empty(size << 20, device="cuda", dtype=torch.uint8)

@pytest.mark.limit_reserved("2GiB")
@pytest.mark.xfail(strict=True)
def test_wrong(model):
    assert False

@pytest.mark.limit_reserved("2GiB")
def test_nothing():
    pass
"""
WRONG = """
import pytest

@pytest.mark.limit_reserved("2 much")
def test_size(): pass

@pytest.mark.limit_reserved
def test_none(): pass

@pytest.mark.allocsim(max_memory="2GiB")
def test_name(): pass

@pytest.mark.allocsim(gpu="RTX 4090")
def test_card_only(): pass

@pytest.mark.limit_reserved("2GiB")
def test_right(): pass
"""


def run(
    python: str, folder: Path, text: str, *more: str, path: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    (folder / "test_it.py").write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\n")
    command = [python, "-m", "pytest", "-p", "allocsim.pytest_plugin", "-p", "no:cacheprovider"]
    return subprocess.run(
        [*command, "-rA", "-q", *more],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(path)]),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )


def test_plugin_is_an_entry_point_of_pytest() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    plugin = import_module(project["entry-points"]["pytest11"]["allocsim"])
    assert {"pytest_configure", "pytest_runtest_call"} <= set(vars(plugin))


def test_a_session_without_marks_imports_nothing_heavy(tmp_path: Path) -> None:
    done = run(sys.executable, tmp_path, PLAIN)
    assert done.returncode == 0, done.stdout


def test_invalid_marks_fail_with_one_sentence(tmp_path: Path) -> None:
    """The valid mark runs with PyTorch and is skipped without it."""
    done = run(sys.executable, tmp_path, WRONG)
    for sentence in (
        "size '2 much' is not a number with a unit",
        'expected limit_reserved("2GiB")',
        "expected allocsim(...) with max_reserved, max_allocated",
        "allocsim() has no limit; expected at least one",
    ):
        assert sentence in done.stdout
    assert "4 failed" in done.stdout or "5 failed" in done.stdout
    if "has no PyTorch" in done.stdout:
        assert "needs a CUDA build of PyTorch: " in done.stdout and "1 skipped" in done.stdout


@pytest.mark.slow
@NEEDS_TORCH
@pytest.mark.parametrize("python", PYTHONS)
def test_plugin_measures_a_test_with_real_pytorch(python: str, tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    for name in NEEDED:
        installed = distribution(name)
        for top in {file.parts[0] for file in installed.files or () if file.parts[0] != ".."}:
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(installed.locate_file(top))))
    done = run(python, tmp_path, MARKED, path=site)
    text = done.stdout
    for line in (
        "PASSED test_it.py::test_fits",
        "PASSED test_it.py::TestOfAClass::test_sizes[10]",
        "XFAIL test_it.py::test_wrong",
    ):
        assert line in text, text
    assert "FAILED test_it.py::TestOfAClass::test_sizes[90] - " in text
    assert "failed: allocated memory is 70.00 MiB above the limit of 20.00" in text
    assert "test_it.py:24 grows" in text, "the line of code"
    assert "it is NVIDIA GeForce RTX 4090" in text
    assert "the test requested no GPU memory" in text
    assert "2 failed, 2 passed, 1 xfailed" in text
