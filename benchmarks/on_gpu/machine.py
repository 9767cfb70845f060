"""The Python interpreter that runs PyTorch, on a real or a phantom GPU."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from allocsim.errors import AllocsimError
from allocsim.phantom import Gpu, find_torch, phantom_environment

__all__ = ["INSIDE", "FailedError", "Machine"]

ROOT = Path(__file__).parents[2]
INSIDE = Path(__file__).parent / "inside"
_QUIET = {
    "PYTHONWARNINGS": "ignore",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
}


class FailedError(AllocsimError):
    """A process failed or took too long."""


@dataclass(frozen=True)
class Machine:
    """Interpreter and device that jobs run on.

    python: interpreter with PyTorch.
    phantom: GPU to imitate; None to use the real GPU.
    """

    python: str
    phantom: Gpu | None = None

    @cached_property
    def environment(self) -> dict[str, str]:
        """Return the environment variables with which PyTorch finds the GPU.

        Raises UnavailableError if the phantom GPU cannot be built.
        """
        if self.phantom is None:
            return {}
        return phantom_environment(find_torch(self.python), self.phantom)

    def run(
        self,
        command: Sequence[str],
        limit: float,
        *,
        log: Path,
        add: dict[str, str] | None = None,
        fine: tuple[int, ...] = (0,),
    ) -> str:
        """Run a command from the root of the tree and return its output.

        limit: seconds, after which the command and its children are killed.
        log: file for the standard error.
        add: additional environment variables.
        fine: exit codes that mean success.
        Raises FailedError.
        """
        environment = os.environ | _QUIET | (add or {})
        places = filter(None, (str(ROOT), environment.get("PYTHONPATH")))
        environment["PYTHONPATH"] = os.pathsep.join(places)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as errors:
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True,
            )  # fmt: skip
            try:
                output, _ = process.communicate(timeout=limit)
            except BaseException as error:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
                if isinstance(error, subprocess.TimeoutExpired):
                    raise FailedError(f"stopped after its limit of {limit:.0f} s") from None
                raise
        if process.returncode not in fine:
            lines = log.read_text(errors="replace").strip().splitlines()
            reason = lines[-1][:200] if lines else "no message"
            raise FailedError(f"exit code {process.returncode}: {reason}")
        return output

    def script(self, name: str, *arguments: str) -> list[str]:
        """Return the command of a script of `inside`."""
        return [self.python, str(INSIDE / name), *arguments]

    def recorded(self, program: Sequence[str], out: Path) -> list[str]:
        """Return the command that runs a Python program and records it into the folder `out`.

        `allocsim.capture` records on a card, `allocsim record` over the phantom.
        """
        out.mkdir(parents=True, exist_ok=True)
        if self.phantom is None:
            capture = [sys.executable, "-m", "allocsim.capture", f"{out}/", "--on", "exit"]
            return [*capture, "--max-entries", "1000000", "--", self.python, *program]
        record = [sys.executable, "-m", "allocsim", "record", "--gpu", self.phantom.name]
        return [*record, "-o", str(out / "run.pickle"), "--", self.python, *program]

    def has(self, module: str) -> bool:
        """Return True if the Python with PyTorch can import `module`."""
        text = f"import importlib.util as u; raise SystemExit(u.find_spec({module!r}) is None)"
        found = shutil.which(self.python)
        command = [found or self.python, "-c", text]
        return subprocess.run(command, check=False, capture_output=True).returncode == 0
