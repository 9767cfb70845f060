"""The command in a separate process: `python -m allocsim`, pipes, imports."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest

import allocsim
from allocsim.core import IS_COMPILED
from tests.cli.conftest import Done

ROOT = Path(__file__).parents[2]
NAME = "traces/gpt2-ragged-oom-torch2.15.pickle.gz"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `python` with these arguments in the root of the repository."""
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_module_runs_the_same_command() -> None:
    done = run("-m", "allocsim", "replay", NAME, "--no-cure")
    assert (done.returncode, done.stderr) == (0, "")
    assert "all addresses as recorded" in done.stdout


def test_process_exits_with_2_for_a_missing_file() -> None:
    done = run("-m", "allocsim", "replay", "missing.pickle")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "allocsim: missing.pickle: does not exist, expected a recording's file\n"
    )


def test_version_option_prints_the_version_of_the_installed_package() -> None:
    assert allocsim.__version__ == version("allocsim")
    done = run("-m", "allocsim", "--version")
    form = "compiled" if IS_COMPILED else "pure Python"
    assert done.stdout == f"allocsim {allocsim.__version__} ({form} core)\n"


def test_citation_names_the_version_of_the_package() -> None:
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {allocsim.__version__}\n" in citation


def test_program_without_a_command_prints_help() -> None:
    done = run("-m", "allocsim")
    assert (done.returncode, done.stderr) == (0, "")
    assert "replay" in done.stdout


def test_closed_pipe_is_no_error() -> None:
    code = (
        "import os, sys; from allocsim.cli import main; r, w = os.pipe(); os.close(r); "
        f"os.dup2(w, 1); sys.exit(main(['replay', {NAME!r}, '--json']))"
    )
    done = run("-c", code)
    assert (done.returncode, done.stderr) == (141, "")


def test_help_loads_nothing_that_it_does_not_need() -> None:
    code = (
        "import sys, allocsim; before = set(sys.modules); from allocsim.cli import main; "
        "main(['--help']); print(*sorted(set(sys.modules) - before), sep='\\n')"
    )
    loaded = set(run("-c", code).stdout.splitlines())
    assert "allocsim.cli" in loaded
    heavy = ("numpy", "rich", "json", "allocsim.core", "allocsim.replaying", "allocsim.report")
    assert not loaded.intersection(heavy)


def test_command_loads_only_its_own_module_and_page(tmp_path: Path) -> None:
    page = str(tmp_path / "page.html")
    code = (
        f"import sys; from allocsim.cli import main; main(['report', {NAME!r}, '-o', {page!r}, "
        "'--no-what-if']); print(*sorted(sys.modules), sep='\\n')"
    )
    loaded = set(run("-c", code).stdout.splitlines())
    assert {"allocsim.cli.report", "allocsim.report.html.html_report"} <= loaded
    others = (
        *("allocsim.cli.tune", "allocsim.cli.fit", "concurrent.futures", "logging"),
        *("allocsim.report.html.static_pages", "allocsim.recording.log_figures"),
        *("allocsim.analysis.explain.of_state", "allocsim.analysis.compare"),
    )
    assert not loaded.intersection(others)


@pytest.mark.parametrize(
    ("command", "others"),
    [
        # An error's text may be the refusal of a server, so the forms of their logs are read.
        (["explain", "CUDA out of memory"], {"allocsim.fitting"}),
        (
            ["replay", NAME],
            {"allocsim.fitting", "allocsim.recording.log_figures", "allocsim.host", "numpy.ma"},
        ),
        (["top", NAME], {"allocsim.fitting", "allocsim.recording.log_figures", "allocsim.host"}),
    ],
)
def test_command_about_a_run_does_not_load_the_models_of_fit(
    command: list[str], others: set[str]
) -> None:
    code = (
        f"import sys; from allocsim.cli import main; main({command!r}); "
        "print(*sorted(sys.modules), sep='\\n')"
    )
    loaded = set(run("-c", code).stdout.splitlines())
    assert "allocsim.report" in loaded
    assert not loaded.intersection(others)


@pytest.mark.parametrize(
    ("words", "others"),
    [
        (["gpt2", "--gpu", "H100"], {"allocsim.replaying.capacity", "allocsim.replaying.trial"}),
        (["Qwen2.5-0.5B", "--device-memory", "3GiB", "--lora", "16"], set()),
        (
            ["Qwen2.5-0.5B", "--gpu", "H100", "--serve"],
            {"allocsim.fitting.parallel", "allocsim.fitting.formulas.training"},
        ),
    ],
)
def test_fit_by_law_loads_neither_runs_nor_other_formulas(
    words: list[str], others: set[str]
) -> None:
    command = ["fit", *words, "--engine", "laws"]
    code = (
        f"import sys; from allocsim.cli import main; main({command!r}); "
        "print(*sorted(sys.modules), sep='\\n')"
    )
    loaded = set(run("-c", code).stdout.splitlines())
    assert {"allocsim.fitting.by_law", "allocsim.analysis.top", "allocsim.report.fit"} <= loaded
    others |= {
        *("allocsim.phantom.build", "allocsim.phantom.recorder", "allocsim.phantom.engines"),
        *("allocsim.fitting.serving", "allocsim.recommend"),
        *("allocsim.fitting.formulas.needs", "allocsim.fitting.formulas.diffusion"),
        *("allocsim.recording.files", "allocsim.recording.source", "allocsim.recording.store"),
        *("allocsim.host", "allocsim.editing", "allocsim.metrics.curve", "numpy.ma"),
        *("allocsim.report.figures", "allocsim.analysis.top.flame"),
    }
    assert not loaded.intersection(others)


def test_html_function_is_not_hidden_by_the_module_of_its_name() -> None:
    code = (
        "from allocsim.report.html import DevicePage, html_report, still_report; "
        "print(callable(html_report), callable(still_report))"
    )
    done = run("-c", code)
    assert (done.stdout, done.stderr) == ("True True\n", "")


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts threads in /proc")
@pytest.mark.parametrize("own", [None, "2"])
def test_command_starts_no_threads_and_does_not_limit_those_of_programs(
    own: str | None, tmp_path: Path
) -> None:
    command = ["synth", "training", "--entries", "10", "-o", str(tmp_path / "a.pickle")]
    code = (
        f"import os; from allocsim.cli import main; code = main({command}); "
        "print(code, len(os.listdir('/proc/self/task')), os.environ.get('OPENBLAS_NUM_THREADS'))"
    )
    env = {key: value for key, value in os.environ.items() if key != "OPENBLAS_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=env if own is None else {**env, "OPENBLAS_NUM_THREADS": own},
        capture_output=True,
        text=True,
        check=True,
    )
    threads = "1" if own is None else str(min(int(own), os.cpu_count() or 1))
    assert done.stdout.splitlines()[-1].split() == ["0", threads, str(own)]


def test_help_fits_a_terminal() -> None:
    done = run("-m", "allocsim", "replay", "--help")
    assert max(map(len, done.stdout.splitlines())) <= 80


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_full_disk_is_reported() -> None:
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "allocsim", "replay", NAME, "--no-cure"],
            cwd=ROOT,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert ended.returncode == 2
    assert ended.stderr == "allocsim: the output cannot be written (No space left on device)\n"


def test_main_restores_the_cycle_collector(cli: Callable[..., Done]) -> None:
    before = gc.get_threshold()
    assert cli("replay", "no-such-file").code == 2
    assert gc.get_threshold() == before
