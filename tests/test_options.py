"""Every option of PyTorch's conf is in every required table; the failure names missing options.

CONTRIBUTING.md lists the same files under "Adding an option". The test reads tables, or observes
effects.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path

import pytest

from allocsim.analysis.step.decision import EXPLAINED
from allocsim.analysis.tune.lower_bound import HOLDS
from allocsim.core import OPTIONS, RELEASES, AllocatorConfig, Release, Role, parse_conf
from allocsim.core.config import _INERT
from allocsim.core.option_string import _READERS
from allocsim.errors import ConfigError
from allocsim.recommend.settings_to_try import UNTRIED
from allocsim.replaying.equivalence import RULES, effect_of
from allocsim.simulation import Setting
from allocsim.units import MIB
from allocsim.verify.generator import RandomSettings
from tests.metrics.test_settings_to_try import SIZES, keys, tried
from tests.naive.options import SINCE

ROOT = Path(__file__).parents[1]
NEWEST = list(RELEASES.values())[-1]
ALL = set[str]().union(*(release.options for release in RELEASES.values()))
EFFECTIVE = {name for name, option in OPTIONS.items() if option.role is not Role.NONE}
OPTION = re.compile(r"(?:^|,)(\w+):(\[.*?\]|[^,]*)")


def random_confs(release: Release) -> Iterator[str]:
    """Yield random option strings, each read on top of the previous ones."""
    for has_pools in (False, True):
        settings = RandomSettings(random.Random(1), release, has_pools=has_pools)
        yield from (settings.make() for _ in range(300))


def random_values() -> dict[str, set[str]]:
    """Return the values that the crosscheck gives each option in the newest release."""
    found: dict[str, set[str]] = {}
    for conf in random_confs(NEWEST):
        for name, value in OPTION.findall(conf):
            found.setdefault(name, set()).add(value)
    return found


def printed() -> set[str]:
    """Return the options in the canonical option string, if they are set."""
    found = set()
    config = AllocatorConfig(NEWEST)
    for conf in random_confs(NEWEST):
        config = parse_conf(conf, NEWEST, config)
        found |= {name for name, _ in OPTION.findall(str(config))}
    return found | {name for name, option in OPTIONS.items() if not option.field}


def searched() -> set[str]:
    """Return the options in the settings that tune tries."""
    return set().union(*(keys(setting) for setting in tried(NEWEST.version)))


def held() -> set[str]:
    """Return the options whose value is a field of the parsed settings, or which need no field."""
    names = {"", *(each.name for each in fields(AllocatorConfig))}
    return {name for name, option in OPTIONS.items() if option.field in names}


@dataclass(frozen=True, slots=True)
class Place:
    """Table that must have every option, or every option with an effect on device memory."""

    file: str
    known: Callable[[], Collection[str]]
    is_for_all: bool = False

    def ignores(self, everything: set[str], effective: set[str]) -> list[str]:
        """Return the options missing in the table, and those in it that no release has."""
        known, wanted = set(self.known()), everything if self.is_for_all else effective
        found = [f"{self.file} does not know {name}" for name in sorted(wanted - known)]
        return found + [f"{self.file} knows {name}, no option" for name in sorted(known - wanted)]


PLACES = (
    Place("allocsim/core/options.py", lambda: OPTIONS, is_for_all=True),
    Place("allocsim/core/option_string.py", lambda: _READERS, is_for_all=True),
    Place("allocsim/core/config.py: AllocatorConfig", held, is_for_all=True),
    Place("allocsim/core/config.py: __str__", printed, is_for_all=True),
    Place("allocsim/core/config.py: _INERT", lambda: _INERT),
    Place("allocsim/recommend/settings_to_try.py", lambda: searched() | UNTRIED.keys()),
    Place("allocsim/replaying/equivalence.py", lambda: RULES),
    Place("allocsim/analysis/tune/lower_bound.py", lambda: HOLDS),
    Place("allocsim/analysis/step/decision.py", lambda: EXPLAINED),
    Place("allocsim/verify/generator.py", random_values, is_for_all=True),
    Place("tests/naive/options.py", lambda: SINCE, is_for_all=True),
)


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.file)
def test_every_option_is_known_wherever_it_must_be(place: Place) -> None:
    assert place.ignores(ALL, EFFECTIVE) == []


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.file)
def test_whoever_does_not_know_a_new_option_is_named(place: Place) -> None:
    new = {"made_up_mb"}
    lacks = f"{place.file} does not know made_up_mb"
    assert lacks in place.ignores(ALL | new, EFFECTIVE | new)
    # An option of the host has no effect on device memory.
    assert (lacks in place.ignores(ALL | new, EFFECTIVE)) == place.is_for_all


def test_the_guide_lists_the_same_files() -> None:
    guide = (ROOT / "CONTRIBUTING.md").read_text()
    section = guide.partition("## Adding an option")[2].partition("\n## ")[0]
    files = re.findall(r"^\| `([\w/]+\.py)` \|", section, re.MULTILINE)
    assert files == list(dict.fromkeys(place.file.split(":")[0] for place in PLACES))


def test_no_option_is_both_tried_and_left() -> None:
    assert not searched() & UNTRIED.keys()


def test_the_page_on_tuning_lists_what_is_tried_and_what_is_left() -> None:
    text = (ROOT / "docs" / "commands" / "tune.md").read_text()
    assert all(f"| `{name}` | " in text for name in searched())
    assert all(f"| `{name}` | {why} |" in text for name, why in UNTRIED.items())


def test_the_section_that_step_cites_for_an_option_names_it() -> None:
    page = (ROOT / "docs" / "concepts" / "allocator.md").read_text()
    sections = dict(part.split("\n", 1) for part in page.split("\n## ")[1:])
    for name, section in EXPLAINED.items():
        if section:
            assert f"`{name}" in sections[section], (name, section)


BESIDE = ("", "per_process_memory_fraction:0.5", "expandable_segments:True", "max_split_size_mb:64")
"""Settings beside which every option makes a difference, each beside one of them."""

CLOSE = replace(SIZES, counts=tuple(sorted([*SIZES.counts, (125 * MIB, 1)])))
"""Sizes with a request whose segment wastes 25 MiB for another request."""


def effect_in_newest(*parts: str) -> object:
    """Return the effect of the options together; None if they are refused."""
    try:
        return effect_of(Setting(",".join(filter(None, parts))), NEWEST, (CLOSE.asked,))
    except ConfigError:
        return None


@pytest.mark.parametrize("name", sorted(EFFECTIVE))
def test_settings_that_differ_in_an_option_may_differ_in_effect(name: str) -> None:
    """The equivalence table must examine every option that it claims to judge."""
    options = [f"{name}:{value}" for value in sorted(random_values()[name])]
    effects = {
        other: {effect_in_newest(other, option) for option in options} - {None}
        for other in BESIDE
        if name not in other
    }
    assert any(found - {effect_in_newest(other)} for other, found in effects.items())


def test_default_cuts_are_defaults_of_all_that_cuts_and_of_nothing_else() -> None:
    cuts = {option.field for option in OPTIONS.values() if option.role is Role.CUTS}
    config = AllocatorConfig(NEWEST)
    fresh = AllocatorConfig(NEWEST)
    for conf in random_confs(NEWEST):
        config = parse_conf(conf, NEWEST, config)
        cut = config.with_default_cuts()
        for option in OPTIONS.values():
            if option.field:
                expected = fresh if option.field in cuts else config
                assert getattr(cut, option.field) == getattr(expected, option.field), option.name
