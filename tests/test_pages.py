"""The setting that keeps freed array memory in the process uses no memory."""

from __future__ import annotations

import subprocess
import sys

import pytest

GROWTH = """
from pathlib import Path
import numpy as np
from allocsim._fast_numpy import keep_pages

def peak():
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])

before = peak()
{call}
print(peak() - before)
"""


@pytest.mark.parametrize(
    ("call", "grows"), [("keep_pages()", False), ("np.ones(32 << 20, np.uint8)", True)]
)
def test_keeping_pages_touches_no_memory(call: str, grows: bool) -> None:
    """A separate process is measured, in KiB; the second case shows that its peak can rise.

    `ru_maxrss` cannot be used: a process inherits it from the process that starts it.
    """
    if not sys.platform.startswith("linux"):
        pytest.skip("needs /proc")
    command = [sys.executable, "-c", GROWTH.format(call=call)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (int(done.stdout) > 4096) == grows
