"""Find the cause of each out-of-memory error in a text, and give advice."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from allocsim._repr import Shown
from allocsim.analysis.explain.advice import BY_CAUSE, OF_PROGRAMS, foreign
from allocsim.analysis.explain.cause import Figures, arithmetic_of, cause_of
from allocsim.analysis.explain.message_search import (
    OomMessage,
    Situation,
    find_messages,
    most_idle_of,
    outside_of,
)
from allocsim.analysis.explain.message_words import TextRelease, text_release
from allocsim.core import NEWEST, RELEASES, AllocatorConfig, parse_conf
from allocsim.errors import ConfigError
from allocsim.units import format_size

_WINDOWS = re.compile(r"""File ["'][A-Za-z]:[\\/]""")  # line of a traceback on Windows

_HELPED = ("fragmentation", "fragmentation_likely", "full", "no_figures")
"""Causes that options of a serving engine help against."""

_ASYNC = re.compile(r"\s*backend\s*:\s*cudaMallocAsync\s*,?")


@dataclass(frozen=True, slots=True, repr=False)
class Verdict(Shown):
    """Cause of one error in a text, with advice.

    cause: name of the cause, one of `MESSAGE_CAUSES`.
    arithmetic: comparison of sizes that decides the cause; "" if there is none.
    advice: sentences, most useful first.
    """

    message: OomMessage
    cause: str
    arithmetic: str
    advice: tuple[str, ...]

    @property
    def figures(self) -> Figures:
        """Sizes that the text prints."""
        return self.message.figures

    @property
    def outside(self) -> str:
        """Clause on other processes or libraries whose memory caused the error; "" if none did."""
        return outside_of(self.message, self.figures)

    def headline(self) -> str:
        return f"{self.cause}: {self.arithmetic}" if self.arithmetic else self.cause

    def figures_shown(self) -> Iterator[tuple[str, str]]:
        yield "cause", self.cause
        if self.arithmetic:
            yield "because", self.arithmetic
        yield from (("advice", sentence) for sentence in self.advice)


def judge_text(
    text: str,
    conf: str | None = None,
    *,
    torch_version: str | None = None,
    device_memory: int | None = None,
) -> tuple[Verdict, ...]:
    release = None if torch_version is None else text_release(torch_version)
    config, is_async = _settings(conf, release)
    messages = find_messages(text) or (OomMessage(text="", line=1, figures=Figures()),)
    if is_async:
        messages = tuple(replace(message, is_async=True) for message in messages)
    is_windows = _WINDOWS.search(text) is not None
    return tuple(
        _judge(message, config, release, device_memory, is_windows=is_windows)
        for message in messages
    )


def _judge(
    message: OomMessage,
    config: AllocatorConfig | None,
    release: TextRelease | None,
    device_memory: int | None,
    *,
    is_windows: bool,
) -> Verdict:
    figures, other = message.figures, device_memory
    if figures.total_bytes is None and device_memory is not None:
        figures, other = replace(figures, total_bytes=device_memory), None
    cause = message.stated or cause_of(figures)
    if cause == "fraction_limit" and message.backend == "MPS":
        cause = "full"  # Apple's limit is a share of the machine's memory, which no program sets.
    if cause == "full" and most_idle_of(message, figures) is not None:
        cause = "no_figures"
    if release is None and message.since is not None:
        release = text_release(message.since)
    situation = Situation(message, figures, cause, config, release, other, is_windows)
    return Verdict(message, cause, arithmetic_of(cause, figures), advice_on(situation))


def advice_on(situation: Situation) -> tuple[str, ...]:
    figures = situation.figures
    found = [*BY_CAUSE[situation.cause](situation), *_on_settings(situation)]
    phase = situation.message.phase
    if phase is not None and situation.cause in _HELPED:
        found = [*phase.advice(figures), *(each for each in found if each not in OF_PROGRAMS)]
    if outside_of(situation.message, figures):
        found = [*foreign(situation), *found]
    if figures.is_contradictory:
        contradiction = (
            f"The sizes contradict each other: {format_size(figures.free_bytes or 0)} are free of "
            f"{format_size(figures.total_bytes or 0)} in total. With unified memory (APUs), the "
            "total is only the part that the firmware set aside for the GPU; look at the system's "
            "memory."
        )
        found = [contradiction, *found]
    if situation.other_total is not None:  # the user's own question is answered first
        found = [*_on_another_card(situation, situation.other_total), *found]
    return tuple(dict.fromkeys(found))


def _on_settings(situation: Situation) -> list[str]:
    config, figures = situation.config, situation.figures
    if config is None:
        return []
    has_limit = figures.limit_below_capacity is not None or config.per_process_memory_fraction < 1.0
    found = [f"{sentence}." for sentence in config.inert_options(has_limit=has_limit)]
    split = situation.max_split_size_mb
    found += [f"Unsafe: {each}. Leave max_split_size_mb out." for each in config.unsafe_options()]
    if split is not None and config.expandable_segments:
        return found
    if split is not None and situation.cause in ("full", "impossible", "host_fallback"):
        found.append(f"max_split_size_mb:{split}, which is set, cannot help here.")
    if not situation.has_native_allocator and str(config):
        found.append(f"{config} has no effect on this backend.")
    return found


def _on_another_card(situation: Situation, total: int) -> list[str]:
    figures = situation.figures
    if figures.tried_bytes is None or figures.free_bytes is None or figures.total_bytes is None:
        return []
    free = figures.free_bytes + total - figures.total_bytes
    answer = "the request would have failed as well"
    if free >= figures.tried_bytes:
        answer = f"the request would have succeeded, with {format_size(free)} free"
    return [f"On a card of {format_size(total)} with all else equal, {answer}."]


def _settings(conf: str | None, release: TextRelease | None) -> tuple[AllocatorConfig | None, bool]:
    # The second result is True if `conf` selects the cudaMallocAsync backend.
    if conf is None:
        return None, False
    native, count = _ASYNC.subn("", conf)
    rules = RELEASES[NEWEST] if release is None else release.rules
    try:
        return parse_conf(native, rules), count > 0
    except ConfigError as error:
        hint = "; expected options as key:value" if "=" in native else ""
        raise ConfigError(f"{error}{hint}") from None
