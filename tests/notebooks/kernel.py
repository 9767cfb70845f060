"""A notebook run from its first cell to its last, in a fresh kernel of this very Python.

Rule: the kernel is `sys.executable` with the allocsim that is imported here, whatever kernels,
profiles and packages the machine has beside it.  It works in the notebook's own folder, as
Jupyter does, so that paths begin with `../`.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import nbformat
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbformat import NotebookNode

import allocsim

__all__ = ["FOLDER", "NOTEBOOKS", "executed", "read"]

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
SECONDS_A_CELL = 240
"""Long enough for a machine that does much else; a cell takes a few."""


class ThisPython(AsyncKernelManager):
    """Starts the interpreter that asks, whatever kernels are installed under that name."""

    @property
    def kernel_spec(self) -> KernelSpec:
        """Command that starts the kernel; only errors go to standard error."""
        launch = [sys.executable, "-m", "ipykernel_launcher", "--log-level=ERROR"]
        return KernelSpec(argv=[*launch, "-f", "{connection_file}"], language="python")


def read(path: Path) -> NotebookNode:
    """The notebook in the file at `path`."""
    notebook: NotebookNode = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    return notebook


def executed(path: Path) -> NotebookNode:
    """A copy of the notebook with the outputs of a run; the file stays as it is.

    Raises nbclient's CellExecutionError at the first cell that fails.
    """
    notebook = read(path)
    with tempfile.TemporaryDirectory(prefix="allocsim-notebook-") as scratch:
        client = NotebookClient(
            notebook,
            kernel_manager_class=ThisPython,
            timeout=SECONDS_A_CELL,
            record_timing=False,
            coalesce_streams=True,
            resources={"metadata": {"path": str(path.parent)}},
        )
        client.execute(env=_environment(scratch))
    return _plain(notebook)


def _environment(scratch: str) -> dict[str, str]:
    """This process's, but the tested allocsim comes first and nobody's profile is read."""
    package = Path(allocsim.__file__).parents[1]
    others = os.environ.get("PYTHONPATH")
    paths = [str(package), *([others] if others else [])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths), "IPYTHONDIR": scratch}


def _plain(notebook: NotebookNode) -> NotebookNode:
    """Without what would differ between machines: the version of Python, times of cells."""
    notebook["metadata"] = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for cell in notebook.cells:
        cell["metadata"] = {}
    return notebook
