"""pytest plugin with `@pytest.mark.limit_reserved("2GiB")` and `@pytest.mark.allocsim(...)`.

A marked test is recorded on the GPU.  Without a GPU, it runs in a separate interpreter on a phantom
GPU: stubs of the CUDA libraries that simulate one.  The limits apply to the requests of the test's
body, replayed on an empty allocator.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from allocsim.analysis.gate import Budget, Gate

_OUTCOME = "ALLOCSIM_PYTEST_OUTCOME"
"""Environment variable with the path of the file for the outcome of a test on a phantom GPU."""
_MOST_ENTRIES = 2_000_000
_LOST = "older"
"""Word in the recorder's note (`Provenance.captured`) if the oldest entries are missing."""
_SIZES = ("max_reserved", "max_allocated", "max_requested")
_OTHERS = ("max_driver_calls", "max_fragmentation")
_KNOWN = (*_SIZES, *_OTHERS, "gpu")
_CARD = "H100 80GB"


def pytest_configure(config: pytest.Config) -> None:
    what = "fail if the test's body needs more GPU memory"
    config.addinivalue_line("markers", f'limit_reserved("2GiB"): {what} (allocsim)')
    known = ", ".join(f"{name}=..." for name in _KNOWN)
    config.addinivalue_line("markers", f"allocsim({known}): {what}, or run it on a card by name")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Run a marked test on a phantom GPU, in another interpreter, if there is no GPU."""
    if _is_marked(item) and not _is_recorded_here():
        # Attributes of the item hide its methods: the other interpreter sets up its fixtures.
        vars(item).update(setup=lambda: None, runtest=lambda: _run_over_a_phantom(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Record and check a marked test if there is a real or phantom GPU."""
    if not (_is_marked(item) and _is_recorded_here()):
        return (yield)
    budget, _ = _limits_and_card(item)
    from allocsim.capture import capture  # noqa: PLC0415

    with TemporaryDirectory(prefix="allocsim-test-") as folder:
        recording = capture(Path(folder) / "test.pickle", on="exit", max_entries=_MOST_ENTRIES)
        recording.start()
        try:
            result = yield
        finally:
            recording.stop()
        _check_limits(
            item, budget, [file for file in recording.files if "-exit" in Path(file).name]
        )
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Write the outcome of a test on a phantom (simulated) GPU to a file.

    Such a test runs in a second interpreter.  The first one, which the user started, reads the file
    and reports the outcome.
    """
    report = yield
    if _OUTCOME in os.environ and _is_marked(item):
        text = report.longreprtext
        if report.skipped and call.excinfo is not None:
            text = str(call.excinfo.value)
        outcome = {"when": report.when, "outcome": report.outcome, "text": text}
        line = json.dumps(outcome | {"output": report.capstdout + report.capstderr})
        with Path(os.environ[_OUTCOME]).open("a", encoding="utf-8") as file:
            file.write(line + "\n")
    return report


def _is_marked(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(name) for name in ("allocsim", "limit_reserved"))


def _limits_and_card(item: pytest.Item) -> tuple[Budget, str]:
    from allocsim.analysis.gate import Budget  # noqa: PLC0415

    values: dict[str, Any] = {}
    for mark in item.iter_markers():
        if mark.name == "limit_reserved":
            if len(mark.args) != 1 or mark.kwargs:
                pytest.fail('expected limit_reserved("2GiB")', pytrace=False)
            values = {"max_reserved": mark.args[0]} | values
        elif mark.name == "allocsim":
            if mark.args or not set(mark.kwargs) <= set(_KNOWN):
                known = ", ".join(_KNOWN)
                pytest.fail(f"expected allocsim(...) with {known}", pytrace=False)
            values = dict(mark.kwargs) | values
    card = str(values.pop("gpu", _CARD))
    budget = Budget(**_read(values))
    if budget.is_empty:
        pytest.fail("allocsim() has no limit; expected at least one", pytrace=False)
    return budget, card


def _read(values: Mapping[str, Any]) -> dict[str, Any]:
    from allocsim.units import parse_size  # noqa: PLC0415

    try:
        sizes = {name: parse_size(values[name]) for name in _SIZES if name in values}
        numbers = {name: float(values[name]) for name in _OTHERS if name in values}
    except (TypeError, ValueError) as error:
        wrong = str(error)
    else:
        return sizes | numbers
    pytest.fail(wrong, pytrace=False)


def _check_limits(item: pytest.Item, budget: Budget, files: Sequence[str]) -> None:
    from allocsim.analysis.gate import gate, measured  # noqa: PLC0415
    from allocsim.recording import Action, load  # noqa: PLC0415
    from allocsim.report import gate as report  # noqa: PLC0415

    judged: list[Gate] = []
    for recording in map(load, files):
        made = recording.provenance
        if made is not None and _LOST in made.captured:
            pytest.fail(f"not all of the test was recorded: {made.captured}", pytrace=False)
        judged += [
            gate(
                replace(
                    measured(recording, counts_held=False, device=trace.device), path=item.nodeid
                ),
                budget,
            )
            for trace in recording.devices
            if trace.count(Action.ALLOC)
        ]
    if not judged:
        pytest.fail("the test requested no GPU memory, so there is nothing to check", pytrace=False)
    failed = [report.text(each) for each in judged if not each.passed]
    if failed:
        pytest.fail("\n".join(failed), pytrace=False)


def _is_recorded_here() -> bool:
    return _OUTCOME in os.environ or _has_gpu()


@cache
def _has_gpu() -> bool:
    from allocsim.phantom import has_gpu  # noqa: PLC0415

    return has_gpu()


def _run_over_a_phantom(item: pytest.Item) -> None:
    from allocsim.errors import PhantomError  # noqa: PLC0415
    from allocsim.phantom import find_gpu, find_torch, phantom_environment  # noqa: PLC0415

    card = _limits_and_card(item)[1]
    try:
        environment = phantom_environment(find_torch(sys.executable), find_gpu(card))
    except PhantomError as error:
        pytest.skip(f"needs a CUDA build of PyTorch: {error}")
    with TemporaryDirectory(prefix="allocsim-test-") as folder:
        outcome = Path(folder) / "outcome"
        done = subprocess.run(  # noqa: S603
            _command_for(item),
            env={**os.environ, **environment, _OUTCOME: str(outcome), "PYTEST_ADDOPTS": ""},
            cwd=item.config.invocation_params.dir,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        lines = outcome.read_text(encoding="utf-8").splitlines() if outcome.exists() else []
    _end_as([json.loads(line) for line in lines], done)


def _end_as(reports: Sequence[Mapping[str, str]], done: subprocess.CompletedProcess[str]) -> None:
    for report in reports:
        if report["when"] == "teardown":  # the last report, with all captured output
            sys.stdout.write(report["output"])
    for report in reports:
        if report["outcome"] == "skipped":
            pytest.skip(report["text"])
        if report["outcome"] == "failed":
            pytest.fail(report["text"], pytrace=False)
    if not any(report["when"] == "teardown" for report in reports):
        what = f"the interpreter of this test ended with exit code {done.returncode}"
        pytest.fail(f"{what}\n{done.stdout}", pytrace=False)


def _command_for(item: pytest.Item) -> list[str]:
    # Options that concern all tests, such as reports, are left out. With --runxfail, a mark for an
    # expected failure is left to the process that reports the outcome.
    config = item.config
    within = item.nodeid.partition("::")[2]
    command = [sys.executable, "-m", "pytest", f"{item.path}::{within}", "-q", "--runxfail"]
    command += ["-o", "addopts=", "--rootdir", str(config.rootpath)]
    command += ["-p", "no:cacheprovider", "-p", "no:xdist"]
    command.append(f"--import-mode={config.getoption('importmode')}")
    if config.inipath is not None:
        command += ["-c", str(config.inipath)]
    for name in config.option.plugins:
        command += ["-p", name]
    return command
