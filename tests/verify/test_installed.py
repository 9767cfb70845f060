"""Scripts on complete PyTorch: errors for missing parts, equal results otherwise."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from allocsim.core import find_release
from allocsim.errors import RefusedError, UnavailableError
from allocsim.phantom.gpu import Gpu
from allocsim.phantom.installs import TorchInstall, find_torch
from allocsim.phantom.recorder import phantom_environment
from allocsim.units import GIB, MIB
from allocsim.verify import Script, installed, torch_player
from allocsim.verify.comparison import judge
from allocsim.verify.crosscheck import CrossCheck, crosscheck
from allocsim.verify.installed import InstalledSource, InstalledTorch
from allocsim.verify.real import plain_environment
from tests.pythons import PYTHONS


def interpreter(place: Path, body: str) -> str:
    """Write a substitute for an interpreter with torch 2.15; return its path."""
    path = place / "python"
    path.write_text(f"#!{sys.executable}\n{body}")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def installed_2_15(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        installed, "find_torch", lambda python: TorchInstall(python, "2.15.0", "13.2")
    )
    monkeypatch.setattr(installed, "phantom_environment", lambda *_: {"PHANTOM": "1"})


def test_interpreter_without_torch_is_unavailable() -> None:
    if "torch" in sys.modules:
        pytest.skip("torch is here")
    with pytest.raises(UnavailableError, match="has no PyTorch; expected a CUDA build of torch"):
        InstalledTorch(sys.executable)


@pytest.mark.usefixtures("installed_2_15")
def test_torch_that_does_not_start_is_unavailable(tmp_path: Path) -> None:
    python = interpreter(tmp_path, "import sys; sys.exit('libcudart.so.13: cannot open')")
    with pytest.raises(UnavailableError) as caught:
        InstalledTorch(python)
    assert str(caught.value) == "torch 2.15.0 does not start: libcudart.so.13: cannot open"


@pytest.mark.usefixtures("installed_2_15")
def test_torch_that_ends_or_refuses_raises(tmp_path: Path) -> None:
    body = """
import os, sys
print('"2.15.0"', flush=True)
for answer in ('768', '6'):
    sys.stdin.readline()
    print('Unrecognized key', os.environ['PHANTOM'], file=sys.stderr, flush=True)
    print(answer, flush=True)
"""
    torch = InstalledTorch(interpreter(tmp_path, body))
    with pytest.raises(RefusedError, match=r"^torch 2\.15\.0 failed: Unrecognized key 1$"):
        torch.run(Script([], GIB))
    with pytest.raises(RefusedError, match=r"^torch 2\.15\.0 died of SIGABRT: Unrecognized"):
        torch.run(Script([], GIB))
    with pytest.raises(UnavailableError, match=r"^torch 2\.15\.0 has ended: "):
        torch.run(Script([], GIB))
    torch.close()


@pytest.mark.usefixtures("installed_2_15")
def test_missing_gpu_is_no_divergence(tmp_path: Path) -> None:
    body = f"""
import sys
print('"2.15.0"', flush=True)
sys.stdin.readline()
print('CUDA driver error 100 at the start of a context', file=sys.stderr, flush=True)
print({torch_player.NO_CONTEXT << 8}, flush=True)
"""
    torch = InstalledTorch(interpreter(tmp_path, body), is_phantom=False)
    with pytest.raises(
        UnavailableError, match=r"^torch 2\.15\.0 gets no GPU: CUDA driver error 100"
    ):
        torch.run(Script([], GIB))
    torch.close()


@pytest.fixture(params=PYTHONS or [""])
def python(request: pytest.FixtureRequest) -> Iterator[str]:
    if not request.param:
        pytest.skip("ALLOCSIM_TORCH_PYTHON names no Python with torch")
    yield request.param
    for is_phantom in (True, False):
        installed.opened(request.param, is_phantom).close()
    installed.opened.cache_clear()


@pytest.mark.slow
def test_whole_pytorch_over_the_phantom_gpu(python: str) -> None:
    release = find_release(find_torch(python).version).version
    report = crosscheck(CrossCheck((InstalledSource(release, python),), seed=400_000, ops=20_000))
    assert report.divergence is None, report.divergence.as_test()


@pytest.mark.slow
def test_real_gpu_mode_works_on_the_phantom_gpu(
    python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Uses PyTorch's own streams; the model does not get addresses, context and free memory.

    A context takes a second, as on a real card; 100 operations per second are the minimum there.
    """
    monkeypatch.setattr(installed, "plain_environment", partial(card_of, python))
    release = find_release(find_torch(python).version).version
    source = InstalledSource(release, python, is_phantom=False)
    begin = time.monotonic()
    report = crosscheck(CrossCheck((source,), seed=400_000, ops=10_000))
    assert report.divergence is None, report.divergence.as_test()
    assert report.tally.ops / (time.monotonic() - begin) > 100


@pytest.mark.slow
def test_oom_text_is_compared_without_processes(
    python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installed, "plain_environment", partial(card_of, python))
    torch = installed.opened(python, False)
    script = Script([["m", 0.01], ["a", 1, GIB, 0]], 79 * GIB)
    (said,) = torch._execute(script)["messages"]
    in_use = (
        "Process 4711 has 9.00 GiB memory in use. Including non-PyTorch memory, this process has"
    )
    assert in_use in said
    (compared,) = torch.run(script).messages
    assert len(compared) < len(said)
    assert "in use" not in compared
    assert judge(torch, script).divergence is None


OTHERS = 9 * GIB


def card_of(python: str) -> dict[str, str]:
    """Return an environment where PyTorch takes a phantom for a real card with other processes."""
    gpu = Gpu("NVIDIA H100", 79 * GIB, context_memory=OTHERS + 512 * MIB + 4711)
    return (
        plain_environment()
        | phantom_environment(find_torch(python), gpu, address_policy="firstfit")
        | {"ALLOCSIM_PHANTOM_PROCESSES": f"4711:{OTHERS},self", "ALLOCSIM_PHANTOM_STARTUP": "1000"}
    )


@pytest.mark.slow
def test_each_script_runs_on_a_new_allocator(python: str) -> None:
    """A script leaves nothing behind: running the first one again gives equal results."""
    torch = installed.opened(python, True)
    release = find_release(torch.torch_version).version
    source = InstalledSource(release, python)
    script = source.script(torch, 400_000)
    first = torch.run(script)
    for seed in range(400_001, 400_010):
        assert judge(torch, source.script(torch, seed)).divergence is None
    assert torch.run(script) == first
