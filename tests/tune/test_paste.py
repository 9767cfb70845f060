"""A recommended setting works in every release of a layout, or names those it needs."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from allocsim import CachingAllocator, OutOfMemoryError, explain, load
from allocsim.cli import main
from allocsim.core import RELEASES, parse_conf
from allocsim.errors import ConfigError
from allocsim.recommend import usual_settings
from allocsim.replaying import prepare
from allocsim.simulation import releases_needed
from allocsim.units import MIB


def stranding(gpu: CachingAllocator) -> None:
    """Cache 530 MiB with 270 in use repeatedly; each time 260 MiB become unusable."""
    for _ in range(3):
        gpu.free(gpu.malloc(530 * MIB))
        gpu.malloc(270 * MIB)
    with pytest.raises(OutOfMemoryError):
        gpu.malloc(530 * MIB)


def in_small_pieces(gpu: CachingAllocator) -> None:
    """Record blocks of 9 MiB; two fit a segment of 20, and 56 fit one of 512 with less waste."""
    for _ in range(112):
        gpu.malloc(9 * MIB)


Program = Callable[[CachingAllocator], None]


@pytest.fixture
def layout(tmp_path: Path) -> Callable[[str, Program], Path]:
    """Record a program in the layout of a release, and return the path."""

    def write(version: str, program: Program) -> Path:
        gpu = CachingAllocator("2GiB", "", version, record_history=True)
        program(gpu)
        path = tmp_path / "run.pickle"
        path.write_bytes(pickle.dumps(gpu.snapshot(), protocol=4))
        return path

    return write


def takes(conf: str, version: str) -> bool:
    try:
        parse_conf(conf, RELEASES[version])
    except ConfigError:
        return False
    return True


def refused_by(conf: str, needs: str | None, possible: tuple[str, ...]) -> list[str]:
    """Return the releases of a layout that refuse a setting without being excluded by its note."""
    versions = list(RELEASES)
    since = versions[0] if needs is None else needs.removeprefix("PyTorch ").split()[0]
    output = versions[versions.index(since) :]
    return [version for version in possible if version in output and not takes(conf, version)]


@pytest.mark.parametrize("version", RELEASES)
def test_releases_needed_are_named_for_every_usual_setting(
    layout: Callable[[str, Program], Path], version: str
) -> None:
    (prepared,) = prepare(load(layout(version, in_small_pieces)))
    assert version in prepared.releases
    settings = usual_settings(prepared.config)
    assert settings
    for setting in settings:
        needs = releases_needed(setting.conf, prepared.release, prepared.releases)
        assert refused_by(setting.conf, needs, prepared.releases) == []
        if needs is not None:
            assert not all(takes(setting.conf, each) for each in prepared.releases)
        alone = releases_needed(setting.conf, prepared.release, (prepared.release.version,))
        assert alone is None


@pytest.mark.parametrize("version", ["2.1", "2.6", "2.10", "2.13", "2.15"])
def test_commands_name_the_releases_that_their_setting_needs(
    layout: Callable[[str, Program], Path],
    capsys: pytest.CaptureFixture[str],
    version: str,
) -> None:
    path = layout(version, stranding)
    (prepared,) = prepare(load(path))

    def output(*argv: str) -> dict[str, object]:
        capsys.readouterr()
        assert main([*argv, "--json"]) == 0
        document: dict[str, object] = json.loads(capsys.readouterr().out)
        return document

    cure = output("replay", str(path), "--cure")["devices"][0]["cure"]  # type: ignore[index]
    assert cure["best"] is not None
    assert refused_by(cure["best"]["conf"], cure["best_needs"], prepared.releases) == []
    best = output("tune", str(path))["best"]
    assert isinstance(best, dict)
    assert refused_by(best["conf"], best["needs"], prepared.releases) == []
    (found,) = explain(load(path))
    confs = [remedy for remedy in found.remedies if remedy.kind == "conf"]
    assert confs
    for remedy in confs:
        assert refused_by(remedy.conf, remedy.needs, prepared.releases) == []


def test_an_option_that_one_of_two_releases_lacks_is_named_with_the_other(
    layout: Callable[[str, Program], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """2.10 and 2.11 write the same layout, and only 2.11 knows large_segment_size_mb."""
    path = layout("2.10", in_small_pieces)
    assert prepare(load(path))[0].releases == ("2.10", "2.11")
    conf = "large_segment_size_mb:512"
    assert main(["tune", str(path), "--try", conf, "-v"]) == 0
    output = capsys.readouterr().out
    assert f"export PYTORCH_CUDA_ALLOC_CONF={conf}" in output
    assert "(PyTorch 2.11 or later)" in output
    assert main(["tune", str(path), "--try", conf, "--torch", "2.11"]) == 0
    assert "or later)" not in capsys.readouterr().out
