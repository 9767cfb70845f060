"""The CI workflows use existing files, pinned actions and the fewest permissions."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.workflows import ROOT, commands, jobs, workflows

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
KNOWN = {"allocsim", "check-wheel-contents", "make", "mypy", "pyroma", "python", "ruff", "twine"}
"""First words of commands: Python, make, and programs that a dependency group installs."""


@pytest.mark.parametrize("name", jobs())
def test_commands_name_groups_targets_and_files_of_the_tree(name: str) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for command, _ in commands(jobs()[name]):
        assert command.split()[0] in KNOWN, command
        for group in re.findall(r"--group (\S+)", command):
            assert group in PROJECT["dependency-groups"], command
        for target in re.findall(r"^make (\S+)", command):
            # The environment `docs` is for the documentation site.
            assert target == "docs" or re.search(rf"^{target}:", makefile, re.MULTILINE), command
        for file in re.findall(r"(?:\.github|traces)/\S+", command):
            assert (ROOT / file).exists(), command


@pytest.mark.parametrize("name", workflows())
def test_actions_are_pinned_and_permissions_are_granted_by_job(name: str) -> None:
    workflow = workflows()[name]
    assert workflow["permissions"] == {}
    for job in workflow["jobs"].values():
        assert "permissions" in job or name == "release"
        if "uses" in job:
            assert (ROOT / job["uses"]).exists()
            continue
        assert job["timeout-minutes"] <= 120
        for step in job["steps"]:
            assert "uses" not in step or re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", step["uses"]), step


def test_tests_and_wheels_are_for_every_python_of_the_classifiers() -> None:
    classified = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["project"]["classifiers"]))
    assert jobs()["tests/test"]["strategy"]["matrix"]["python"] == classified
    built = PROJECT["tool"]["cibuildwheel"]["build"].split()
    assert built == [f"cp{version.replace('.', '')}-*" for version in classified]


@pytest.fixture
def release() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", ROOT / ".github" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_tag_is_released_when_every_file_names_its_version(
    release: ModuleType, tmp_path: Path
) -> None:
    (tmp_path / "allocsim").mkdir()
    for name in ("allocsim/__init__.py", "CITATION.cff", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tmp_path / name)
    replace(tmp_path / "allocsim" / "__init__.py", r'^__version__ = ".*"', '__version__ = "0.9.1"')
    replace(tmp_path / "CITATION.cff", r"^version: .*", "version: 0.9.1")
    assert len(release.problems("v0.9.1", tmp_path)) == 1
    replace(tmp_path / "CHANGELOG.md", r"^## .*", "## [0.9.1] - 2026-12-01")
    assert release.problems("v0.9.1", tmp_path) == []
    assert len(release.problems("v0.9.2", tmp_path)) == 3


@pytest.mark.parametrize("tag", ["0.9.1", "v0.9", "v0.9.1.dev0"])
def test_a_tag_of_another_form_is_refused(release: ModuleType, tag: str) -> None:
    assert release.problems(tag)[0].endswith("expected a tag like v0.2.0")


def test_the_command_of_the_release_workflow_succeeds_when_all_agree(tmp_path: Path) -> None:
    for name in (".github", "allocsim"):
        (tmp_path / name).mkdir()
    script = tmp_path / ".github" / "release.py"
    shutil.copy(ROOT / ".github" / "release.py", script)
    (tmp_path / "allocsim" / "__init__.py").write_text('__version__ = "0.9.1"\n')
    (tmp_path / "CITATION.cff").write_text("version: 0.9.1\n")
    (tmp_path / "CHANGELOG.md").write_text("## [0.9.1] - 2026-12-01\n")
    done = [
        subprocess.run(
            [sys.executable, str(script), tag], capture_output=True, text=True, check=False
        )
        for tag in ("v0.9.1", "v0.9.2")
    ]
    assert [(each.returncode, bool(each.stderr)) for each in done] == [(0, False), (1, True)]


def replace(path: Path, pattern: str, text: str) -> None:
    changed: tuple[str, Any] = re.subn(pattern, text, path.read_text(), count=1, flags=re.MULTILINE)
    assert changed[1] == 1
    path.write_text(changed[0])
