"""Find the cause of each out-of-memory error in a text, and give advice."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from allocsim._repr import Shown
from allocsim.analysis.explain.advice import advice_on
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

_WINDOWS = re.compile(r"""File ["'][A-Za-z]:[\\/]""")  # line of a traceback on Windows

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
        """Clause on other processes or libraries whose memory caused the error; "" if none."""
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
