"""Files in a folder are recognised as recordings by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from allocsim.recording import ENDINGS, recordings_in


@pytest.mark.parametrize("packed", ["", ".gz", ".xz", ".zst", ".zip"])
@pytest.mark.parametrize("ending", ENDINGS)
def test_recordings_in_a_folder_include_every_format(
    tmp_path: Path, ending: str, packed: str
) -> None:
    path = tmp_path / f"run{ending}{packed}"
    path.write_bytes(b"")
    assert recordings_in(tmp_path) == [path]


@pytest.mark.parametrize("name", ["notes.txt", "run.pickle.part", "run.gz", "run.pickle.gz.gz"])
def test_recordings_in_a_folder_exclude_other_files(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    assert recordings_in(tmp_path) == []


def test_recordings_in_a_folder_exclude_folders(tmp_path: Path) -> None:
    """A folder with such a name is searched; a dangling link is ignored."""
    (tmp_path / "run.pickle").mkdir()
    (tmp_path / "gone.pickle").symlink_to("nowhere")
    assert recordings_in(tmp_path) == []
    inside = tmp_path / "run.pickle" / "rank0.npz"
    inside.write_bytes(b"")
    assert recordings_in(tmp_path) == [inside]


def test_recordings_in_a_folder_are_sorted_by_path(tmp_path: Path) -> None:
    names = ["a-b/run.pkl", "a/run.pkl", "a.pkl"]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    found = [str(path.relative_to(tmp_path)) for path in recordings_in(tmp_path)]
    assert found == ["a-b/run.pkl", "a.pkl", "a/run.pkl"]


def test_recordings_in_a_missing_folder_are_none(tmp_path: Path) -> None:
    assert recordings_in(tmp_path / "nowhere") == []
