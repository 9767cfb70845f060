"""Tests of `allocsim top --host` and `allocsim explain --host`."""

from __future__ import annotations

from collections.abc import Callable

from tests.host.real import DATA

from .conftest import Done

LOADER = DATA / "loader.pickle.gz"


def test_pinned_memory_fits_one_screen(cli: Callable[..., Done]) -> None:
    for command in ("top", "explain"):
        done = cli(command, "--host", LOADER)
        assert (done.code, done.err) == (0, "")
        lines = done.out.splitlines()
        assert len(lines) <= 21
        assert max(map(len, lines)) <= 80
        assert lines[0].startswith("Pinned host memory")
        assert cli(command, "--host", LOADER, "--json").code == 0


def test_pinned_memory_is_of_no_device(cli: Callable[..., Done]) -> None:
    done = cli("top", "--host", LOADER, "--device", 0)
    assert done.code == 2
    assert "leave out --device and --torch" in done.err
    done = cli("explain", "--host", "missing")
    assert done.code == 2
    assert "--host needs a recording's file; 'missing' is none" in done.err
