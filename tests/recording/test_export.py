"""A file is written completely or not at all, without temporary files left."""

from __future__ import annotations

from pathlib import Path

import pytest

from allocsim.recording.export import whole_file


def test_whole_file_replaces_the_old_file_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with whole_file(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [OSError, ValueError, KeyboardInterrupt])
def test_whole_file_keeps_the_old_file_after_an_error(
    tmp_path: Path, error: type[BaseException]
) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(error), whole_file(path) as file:
        file.write(b"half")
        raise error
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_whole_file_has_default_permissions(tmp_path: Path) -> None:
    (tmp_path / "any").write_text("")
    with whole_file(tmp_path / "new") as file:
        file.write(b"x")
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "any").stat().st_mode


def test_whole_file_replaces_the_target_of_a_link(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("old")
    (tmp_path / "link").symlink_to("there")
    with whole_file(tmp_path / "link") as file:
        file.write(b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "there").read_text() == "new"


def test_whole_file_accepts_the_longest_file_name(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 255)
    with whole_file(path) as file:
        file.write(b"x")
    assert path.read_bytes() == b"x"


def test_whole_file_in_a_missing_folder_raises_the_systems_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), whole_file(tmp_path / "no" / "a"):
        pass
