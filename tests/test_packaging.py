"""The package's metadata, its optional dependencies, and what a build leaves in or out."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from importlib.metadata import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
TRACE = "traces/counted/function-torch2.15.npz.gz"
WITHOUT_MATPLOTLIB = """\
import sys
sys.modules["matplotlib"] = None
from allocsim.cli import main
sys.exit(main())
"""


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of allocsim in a process that cannot import matplotlib."""
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_MATPLOTLIB, *words],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    "words",
    [
        ["plot", "memory", TRACE],
        ["plot", "address-map", TRACE],
        ["plot", "segments", TRACE],
        ["plot", "sizes", TRACE],
        ["plot", "flame", TRACE],
        ["plot", "front", "no-file.json"],
        ["compare", TRACE, "--conf", "expandable_segments:True"],
    ],
    ids=" ".join,
)
def test_without_matplotlib_a_figure_is_one_sentence(words: list[str], tmp_path: Path) -> None:
    output = tmp_path / "figure.png"
    done = run(*words, "-o", str(output))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "allocsim: figures need matplotlib, which is not installed: pip install 'allocsim[plot]'\n"
    )
    assert not output.exists()


@pytest.mark.parametrize(
    "words",
    [
        ["replay", TRACE],
        ["top", TRACE],
        ["compare", TRACE, "--conf", "expandable_segments:True", "-o", "{}/page.html"],
        ["report", TRACE, "-o", "{}/page.html"],
    ],
    ids=" ".join,
)
def test_without_matplotlib_other_answers_are_given(words: list[str], tmp_path: Path) -> None:
    done = run(*(word.format(tmp_path) for word in words))
    assert (done.returncode, done.stderr) == (0, "")


def test_the_extra_test_is_the_group_test() -> None:
    extras, groups = PROJECT["project"]["optional-dependencies"], PROJECT["dependency-groups"]
    assert extras["test"] == groups["test"]
    assert extras.keys() & groups.keys() == {"test"}


def test_every_extra_that_a_text_names_exists() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    folders = [ROOT / "allocsim", ROOT / "docs"]
    texts = [
        path for folder in folders for path in folder.rglob("*") if path.suffix in (".py", ".md")
    ]
    named = {
        extra
        for path in (*texts, ROOT / "README.md")
        for extra in re.findall(r"allocsim\[(\w+)\]", path.read_text(encoding="utf-8"))
    }
    assert "plot" in named
    assert named <= extras.keys()


def test_urls_are_made_of_one_constant() -> None:
    tree = ast.parse((ROOT / "setup.py").read_text())
    constants = {
        node.targets[0].id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    repository = ast.literal_eval(constants["REPOSITORY"])
    urls = metadata("allocsim").get_all("Project-URL")
    assert urls
    owner, name = repository.split("/")[-2:]
    hosts = (repository, f"https://{owner}.github.io/{name}/")
    assert all(url.partition(", ")[2].startswith(hosts) for url in urls)


def test_documentation_url_is_a_page_of_the_site() -> None:
    urls = dict(each.split(", ") for each in metadata("allocsim").get_all("Project-URL") or ())
    page = urls["Documentation"].partition(".github.io/allocsim/")[2]
    assert (ROOT / "docs" / page).with_suffix(".md").exists()
    assert urls["Documentation"] in (ROOT / "README.md").read_text()


def test_every_file_of_the_package_is_of_a_kind_that_is_installed() -> None:
    """Data files are installed beside modules and in allocsim/fitting/laws/data."""
    package = ROOT / "allocsim"
    for path in package.rglob("*"):
        if path.is_dir() or "__pycache__" in path.parts:
            continue
        folder = path.parent.relative_to(ROOT)
        is_package = all(part.isidentifier() for part in folder.parts)
        data = ("allocsim", "fitting", "laws", "data")
        is_data = folder.parts[:4] == data and len(folder.parts) == 5
        assert is_package or is_data, path
