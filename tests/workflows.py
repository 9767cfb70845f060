"""Runs the shell steps of .github/workflows on this machine.

    python -m tests.workflows                    list the jobs
    python -m tests.workflows tests/lint ...     run the steps of these jobs

Each job gets a copy of the tree in a temporary folder and a fresh environment, in place of
actions/checkout and actions/setup-python.  Other actions are skipped.  A matrix is reduced to this
machine's system and Python.  `cibuildwheel` needs containers; here it only lists its builds.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

__all__ = ["FOLDER", "ROOT", "commands", "jobs", "main", "workflows"]

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".github" / "workflows"
_HERE = {
    "python -m cibuildwheel --archs auto64 --output-dir dist": (
        "python -m cibuildwheel --platform linux --archs auto64 --print-build-identifiers"
    ),
    'python .github/release.py "$GITHUB_REF_NAME"': "python -m py_compile .github/release.py",
}
"""Steps that this machine cannot run as they are."""


def workflows() -> dict[str, dict[Any, Any]]:
    """Return every workflow by its name."""
    return {path.stem: yaml.safe_load(path.read_text()) for path in sorted(FOLDER.glob("*.yml"))}


def jobs() -> dict[str, dict[str, Any]]:
    """Return every job with steps, by "workflow/job"."""
    return {
        f"{name}/{job}": body
        for name, workflow in workflows().items()
        for job, body in workflow["jobs"].items()
        if "steps" in body
    }


def commands(job: dict[str, Any]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each shell step of a job and its environment variables."""
    for step in job["steps"]:
        if "run" in step:
            yield step["run"].strip(), step.get("env", {})


def _run(name: str, python: str) -> bool:
    with TemporaryDirectory() as folder:
        tree = Path(folder, "tree")
        tree.mkdir()
        listed = ["git", "ls-files", "-z", "-c", "-o", "--exclude-standard"]
        files = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True).stdout
        copy = ["xargs", "-0", "cp", "--parents", "-t", str(tree)]
        subprocess.run(copy, cwd=ROOT, input=files, check=True)
        environment = Path(folder, "environment")
        subprocess.run([python, "-m", "venv", str(environment)], check=True)
        path = f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}"
        variables = {**os.environ, "PATH": path, "VIRTUAL_ENV": str(environment)}
        install = [str(environment / "bin" / "pip"), "install", "-q", "pip>=25.1"]
        subprocess.run(install, check=True)
        for command, more in commands(jobs()[name]):
            here = _HERE.get(command, command)
            print(f"{name}: {here}", flush=True)
            done = subprocess.run(
                ["bash", "-ec", here], cwd=tree, env=variables | more, check=False
            )
            if done.returncode:
                print(f"{name}: failed with exit code {done.returncode}", flush=True)
                return False
    return True


def main(argv: Sequence[str] | None = None) -> int:
    """Run the named jobs, or list all; return 1 if one fails."""
    parser = argparse.ArgumentParser(description="Run the shell steps of the workflows here.")
    parser.add_argument("jobs", nargs="*", metavar="WORKFLOW/JOB")
    parser.add_argument("--python", default=sys.executable, help="interpreter of the environments")
    arguments = parser.parse_args(argv)
    unknown = set(arguments.jobs) - jobs().keys()
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; expected some of {', '.join(jobs())}")
    if not arguments.jobs:
        print("\n".join(jobs()))
        return 0
    done = [_run(name, arguments.python) for name in arguments.jobs]
    return 0 if all(done) else 1


if __name__ == "__main__":
    sys.exit(main())
