"""Every available file of other people loads, or is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from allocsim.errors import RecordingError
from allocsim.recording import load

SHARED = Path(__file__).parents[3] / "shared"
FILES = [
    *sorted((SHARED / "recordings").glob("*")),
    *sorted((SHARED / "profiler").glob("*")),
    *sorted(SHARED.glob("*.jsonl")),
    *sorted((SHARED / "fit").glob("*")),
    *sorted((SHARED / "golden").glob("*.gz"))[:2],
]
LAYOUTS = {".pickle": ("snapshot", "snapshot 2.0"), ".gz": ("profiler trace", "memory timeline")}
SENTENCES = {
    "README.md": "is text that begins with '# Recordings",
    "oom_messages.jsonl": "is text with an out-of-memory error, expected a PyTorch snapshot; run",
    "truth.jsonl": "is text that begins with",
    "measured.csv": "is text that begins with",
}

pytestmark = pytest.mark.skipif(not FILES, reason="needs files of other people")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_shared_file_loads_or_is_refused_by_name(path: Path) -> None:
    if path.parent.name in ("recordings", "profiler") and path.suffix in LAYOUTS:
        assert load(path).layout in LAYOUTS[path.suffix]
        return
    with pytest.raises(RecordingError) as error:
        load(path)
    said = SENTENCES.get(path.name, "holds a dictionary without segments, expected a PyTorch")
    assert said in str(error.value)
