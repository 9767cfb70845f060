"""Tests of `allocsim crosscheck`: counts, the verdict in the last line, and the exit code."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from allocsim import phantom
from allocsim.core import IS_COMPILED
from allocsim.phantom.installs import TorchInstall
from tests.verify.right_model import MISTAKE, RightModel

from .conftest import Done

CROSSCHECK = import_module("allocsim.verify.crosscheck")
"""The module; its package has a function of the same name."""

Cli = Callable[..., Done]


@pytest.fixture
def at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every release seem to be in the cache."""
    monkeypatch.setattr(CROSSCHECK, "RealAllocator", RightModel)


@pytest.mark.usefixtures("at_hand")
def test_crosscheck_prints_counts_and_a_verdict(cli: Cli) -> None:
    done = cli("crosscheck", "--torch", "2.15", "2.9.1", "--ops", 500, "--seed", 3)
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0] == "Real PyTorch    the allocator of each release, over the phantom GPU"
    assert lines[1].startswith("Seeds           3 to ")
    for name in ("malloc", "record_stream", "begin_allocate_to_pool", "expandable_segments"):
        assert any(line.split()[0] == name for line in lines if line), name
    assert lines[-1].startswith("equal: ")
    assert lines[-1].endswith(" operations of torch 2.15, 2.9, no divergence")
    assert max(map(len, lines)) <= 80


@pytest.mark.usefixtures("at_hand")
def test_crosscheck_prints_its_result_as_json(cli: Cli) -> None:
    done = cli("crosscheck", "--torch", "2.15", "--ops", 500, "--conf", "", "--json")
    assert done.code == 0
    document = json.loads(done.out)
    assert document["divergence"] is None
    assert document["operations"] >= 500
    assert document["seeds"]["2.15"][0] == 0
    assert document["counts"]["option"] == {"none": document["operations"]}
    assert document["verdict"].startswith("equal: ")


@pytest.mark.usefixtures("at_hand")
@pytest.mark.skipif(IS_COMPILED, reason="a compiled core cannot be changed")
def test_crosscheck_prints_a_divergence_and_exits_with_1(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(*MISTAKE)
        done = cli("crosscheck", "--torch", "2.15", "--conf", "")
        document = json.loads(cli("crosscheck", "--torch", "2.15", "--conf", "", "--json").out)
    assert done.code == 1
    last = done.out.splitlines()[-1]
    assert last.startswith("DIVERGENCE in torch 2.15 after ")
    assert last.endswith("differs; the test above fails until the model is fixed")
    found = document["divergence"]
    assert found["test"].strip() in done.out
    assert (found["torch_version"], document["verdict"]) == ("2.15", last)
    namespace: dict[str, Any] = {}
    exec(found["test"], namespace)  # noqa: S102
    namespace["test_a_divergence_from_2_15"]()  # fixed


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--torch", "2.99"], "torch_version '2.99' is not modelled; expected 2.1 to "),
        (["--torch", "2.15", "--conf", "no:1"], "unrecognized key 'no' in Accelerator allocator"),
        (["--torch", "2.15", "--gpu"], "--torch takes the allocator from the cache and needs"),
        (["--torch", "2.15", "--python", "p"], "--torch takes the allocator from the cache and"),
        (["--gpu", "--phantom"], "argument --phantom: not allowed with argument --gpu"),
        (["--ops", "many"], "argument --ops: 'many' is not a whole number, 0 or more"),
        (
            ["--python", "/no/such"],
            "/no/such cannot be started (No such file or directory)",
        ),
        (["--python", sys.executable], f"{sys.executable} has no PyTorch; expected a CUDA build"),
    ],
)
@pytest.mark.usefixtures("at_hand")
def test_crosscheck_refuses_what_it_cannot_check(words: list[str], sentence: str, cli: Cli) -> None:
    done = cli("crosscheck", *words)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"allocsim: {sentence}")
    assert done.err.count("\n") == 1


def test_crosscheck_names_a_release_missing_in_the_cache(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ALLOCSIM_CACHE", str(tmp_path))
    done = cli("crosscheck", "--torch", "2.10")
    assert (done.code, done.err) == (
        2,
        "allocsim: torch 2.10.0 is not in the cache; "
        "python -m allocsim.phantom fetch --torch 2.10.0 downloads it\n",
    )
    done = cli("crosscheck", "--torch", "all")
    assert done.code == 2
    assert done.err.startswith("allocsim: no release is in the cache; python -m allocsim.phantom")


@pytest.mark.usefixtures("at_hand")
def test_crosscheck_all_runs_every_cached_release(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_hand = {"2.3": 1, "2.14": 1}
    monkeypatch.setattr(phantom, "cached_wheel", at_hand.get)
    done = cli("crosscheck", "--torch", "all", "--ops", 1)
    assert done.out.splitlines()[-1].endswith(" operations of torch 2.3, 2.14, no divergence")


def test_pinned_memory_needs_a_whole_pytorch(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    done = cli("crosscheck", "--host", "--torch", "2.15")
    assert done.code == 2
    assert "--host needs a whole PyTorch on a phantom GPU" in done.err
    old = TorchInstall("/old/python", "2.6.0", "12.4")
    monkeypatch.setattr(phantom, "find_torch", lambda _: old)
    done = cli("crosscheck", "--host", "--python", "/old/python")
    assert done.code == 2
    assert "/old/python has torch 2.6.0; --host expects 2.7 or later" in done.err
