"""PyTorch's viewer, `python -m torch.cuda._memory_viz`, reads the output of `convert`.

ALLOCSIM_TORCH_PYTHON names interpreters with any PyTorch; the viewer needs no GPU.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from allocsim.export import simulate
from allocsim.recording import Recording, load, write_snapshot
from tests.pythons import NEEDS_TORCH, PYTHONS

pytestmark = [pytest.mark.slow, NEEDS_TORCH]

TRACES = Path(__file__).parents[2] / "traces"
EVERY = sorted([*TRACES.glob("*.pickle.gz"), *TRACES.glob("*/*.npz.gz")])
ACTIONS = ("stats", "trace", "segments", "memory", "trace_plot", "segment_plot")
# The viewer downloads a script for flame graphs unless it finds one in this place. The script must
# read all input before it writes, or viewer and script would wait for each other.
FLAMEGRAPH = "#!/bin/sh\nlines=$(cat)\necho '<svg>'\necho \"$lines\"\n"


def viewer(python: str, folder: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    cache = folder / ".cache"
    cache.mkdir(exist_ok=True)
    script = cache / "flamegraph.pl"
    script.write_text(FLAMEGRAPH)
    script.chmod(0o755)
    environment = {**os.environ, "HOME": str(folder)}
    done = subprocess.run(
        [python, *map(str, words)],
        capture_output=True,
        text=True,
        env=environment,
        cwd=folder,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done


def simulated(path: Path, conf: str | None) -> Recording:
    recording = load(path)
    return simulate(recording, conf).recording


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("action", ACTIONS)
def test_converted_what_if_opens_in_pytorchs_viewer(
    cli: Any, tmp_path: Path, python: str, action: str
) -> None:
    path = tmp_path / "a.pickle"
    conf = ("--conf", "expandable_segments:True")
    recording = TRACES / "recordings" / "gpt2_training-default-torch2.15.npz.gz"
    assert cli("convert", recording, path, *conf).code == 0
    output: list[str | Path] = [] if action in ("stats", "trace") else ["-o", tmp_path / "out"]
    done = viewer(python, tmp_path, "-m", "torch.cuda._memory_viz", action, path, *output)
    shown = done.stdout if not output else (tmp_path / "out").read_text()
    assert len(shown) > 100
    if action == "trace":
        assert "segment_map" in shown


BATCH = """
import contextlib, io, runpy, sys
for path in sys.argv[1:]:
    for action in ("stats", "trace", "segments", "trace_plot"):
        sys.argv[1:] = [action, path]
        if action in ("segments", "trace_plot"):
            sys.argv += ["-o", path + "." + action]
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown):
            runpy.run_module("torch.cuda._memory_viz", run_name="__main__")
        if len(sys.argv) == 3:
            open(path + "." + action, "w").write(shown.getvalue())
"""


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("conf", [None, "expandable_segments:True"])
def test_converted_replays_of_all_recordings_open_in_pytorchs_viewer(
    tmp_path: Path, python: str, conf: str | None
) -> None:
    """One process opens all files, since importing torch takes longer than everything else."""
    paths = []
    for number, path in enumerate(EVERY):
        paths.append(tmp_path / f"{number}.pickle")
        write_snapshot(simulated(path, conf), paths[-1])
    viewer(python, tmp_path, "-W", "ignore", "-c", BATCH, *paths)
    for path in paths:
        for action in ("stats", "trace", "segments", "trace_plot"):
            assert Path(f"{path}.{action}").stat().st_size > 100, (path, action)
