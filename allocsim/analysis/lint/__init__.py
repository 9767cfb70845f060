"""Check a recording or a value of PYTORCH_CUDA_ALLOC_CONF for problems, without a replay."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from allocsim._repr import Shown
from allocsim.analysis.lint.checks import (
    CHECKS,
    ERROR,
    NOTE,
    WARNING,
    Finding,
    about_history,
    about_processes,
    found,
    gathered,
    lost_entries,
)
from allocsim.core import NEWEST, RELEASES, AllocatorConfig, Release, find_release, parse_conf
from allocsim.errors import ConfigError
from allocsim.recording import Action, MarkKind, Recording, Trace, find_defects
from allocsim.replaying import can_be_of, choose_releases, provenance_notes, workspace_note
from allocsim.state import SegmentState

__all__ = ["CHECKS", "Finding", "Lint", "lint", "lint_conf"]

_SEVERITIES = (ERROR, WARNING, NOTE)
_OF_TWO_RUNS = ("overlap", "free_without_allocation", "history")
"""Checks that fail if a file has the entries of two runs of a program, one after the other."""


@dataclass(frozen=True, slots=True, repr=False)
class Lint(Shown):
    """Result of checking a recording or settings, with all findings, most severe first.

    path: path of the recording; "" if only settings were checked.
    torch_version: PyTorch release whose rules were applied.
    release_note: reason for the choice of `torch_version`, as a sentence.
    conf: recorded PYTORCH_CUDA_ALLOC_CONF; None if it is not recorded.
    asked: PYTORCH_CUDA_ALLOC_CONF that the user wants to set; None if there is none.
    """

    path: str
    torch_version: str
    release_note: str
    conf: str | None
    asked: str | None
    findings: tuple[Finding, ...]

    @property
    def passed(self) -> bool:
        """True if there are no findings except notes."""
        return not any(finding.matters for finding in self.findings)

    def count(self, severity: str) -> int:
        """Return the number of findings with a severity: "error", "warning" or "note"."""
        return Counter(finding.severity for finding in self.findings)[severity]

    def headline(self) -> str:
        counts = [(self.count(severity), severity) for severity in _SEVERITIES]
        numbers = ", ".join(f"{n:,} {what}{'s' * (n > 1)}" for n, what in counts if n)
        return f"{'passed' if self.passed else 'failed'}: {numbers or 'nothing found'}"

    def figures_shown(self) -> Iterator[tuple[str, str]]:
        for finding in self.findings:
            yield finding.severity, finding.text


def lint(
    recording: Recording, conf: str | None = None, *, torch_version: str | None = None
) -> Lint:
    """Check a recording for problems that would affect a replay.

    conf: allocator settings to check too: a value of PYTORCH_CUDA_ALLOC_CONF, or a shell assignment
        such as "PYTORCH_ALLOC_CONF=expandable_segments:True"; None to check only the recording.
    torch_version: PyTorch release that a replay would model; None for the recorded release.
    Raises ConfigError for an unknown PyTorch release.
    """
    possible, release_note = choose_releases(recording, torch_version)
    release = RELEASES[possible[-1]]
    findings = [
        *_about_data(recording),
        *_about_origin(recording, release, torch_version),
        *_about_settings(recording, release, conf),
    ]
    return Lint(
        path=recording.path,
        torch_version=release.version,
        release_note=release_note,
        conf=None if recording.settings is None else recording.settings.conf,
        asked=conf,
        findings=_in_order(findings),
    )


def lint_conf(conf: str, torch_version: str | None = None) -> Lint:
    """Check a value of PYTORCH_CUDA_ALLOC_CONF for one PyTorch release.

    conf: the value, or a shell assignment such as "PYTORCH_ALLOC_CONF=expandable_segments:True".
    torch_version: PyTorch release; None for the newest.
    Raises ConfigError for an unknown PyTorch release.
    """
    release = find_release(NEWEST if torch_version is None else torch_version)
    why = "the newest" if torch_version is None else "as requested"
    return Lint(
        path="",
        torch_version=release.version,
        release_note=f"PyTorch {release.version}: {why}",
        conf=None,
        asked=conf,
        findings=_in_order(about_conf(conf, release)),
    )


def _in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    once = dict.fromkeys(findings)
    return tuple(sorted(once, key=lambda finding: _SEVERITIES.index(finding.severity)))


def _about_data(recording: Recording) -> Iterator[Finding]:
    starts: dict[int, tuple[SegmentState, ...]] = {}
    known = find_defects(recording, starts)
    broken = {each.device: each for each in known if each.severity == "error"}
    sound = [trace for trace in recording.devices if trace.device in starts]
    replayed = [trace for trace in sound if not {trace.device, None} & broken.keys()]
    lost = [lost_entries(trace, starts[trace.device]) for trace in replayed]
    proved = {each.device for each in lost if each is not None}
    # Drop the note that entries may be lost if another finding proves it.
    kept = [
        each
        for each in known
        if (each.check, each.severity) != ("ring", NOTE) or each.device not in proved
    ]
    yield from gathered(recording, kept)
    yield from (each for each in lost if each is not None)
    for trace in sound:
        yield from about_history(trace, starts[trace.device])
    contradicted = {
        n: each for n, each in broken.items() if n is not None and each.check in _OF_TWO_RUNS
    }
    yield from about_processes(recording, contradicted)
    yield from _about_sums(recording)


def _about_sums(recording: Recording) -> Iterator[Finding]:
    wrong = recording.wrong_sums
    if wrong:
        first = wrong[0]
        text = (
            f"{len(wrong):,} sums of segments are wrong, first {first.name} of the segment at "
            f"0x{first.address:x}: {first.recorded} recorded, {first.held} in its blocks"
        )
        yield found("sums", text, device=first.device, value=first.recorded)


def _about_origin(recording: Recording, release: Release, asked: str | None) -> Iterator[Finding]:
    for note in provenance_notes(recording.provenance):
        yield found("provenance", note)
    possible, _ = choose_releases(recording, None)
    if asked is None:
        return
    if not can_be_of(recording, release.version):
        text = f"PyTorch {' or '.join(possible)} wrote the recording, not {release.version}"
        yield found("release", text, value=release.version)
    ways = {RELEASES[version].keeps_cublas_workspaces for version in possible}
    if len(ways) == 1 and (differs := workspace_note(possible[-1], release)) is not None:
        yield found("workspaces", differs, value=release.version)


def _about_settings(recording: Recording, release: Release, conf: str | None) -> Iterator[Finding]:
    possible, _ = choose_releases(recording, None)
    own = RELEASES[possible[-1]]
    yield from about_recorded(recording, own)
    yield from about_command(recording, own)
    if release is not own:
        yield from about_replaying_as(recording, release)
    if conf is not None:
        yield from about_conf(conf, release)


_ASSIGNED = re.compile(r"([A-Z][A-Z0-9_]*)=(\"[^\"]*\"|'[^']*'|\S*)")
_ASYNC_BACKEND = "backend:cudaMallocAsync"
_MEANT = re.compile(r"([a-z][a-z0-9_]*)=([^,\s]+)")
_ALLOC_CONF = "ALLOC_CONF"
_RESERVE = "expandable_segments_reserve"
_SHOWN = 120


@dataclass(frozen=True, slots=True)
class Assignment:
    """Value of PYTORCH_CUDA_ALLOC_CONF that the user wants to set.

    variable: name of the environment variable, which may be an alias; "" if only a value was given.
    """

    conf: str
    variable: str = ""

    def __str__(self) -> str:
        text = f"{self.variable}={self.conf}" if self.variable else self.conf
        return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def assignments(text: str) -> tuple[Assignment, ...]:
    return _named(text) or (Assignment(text.strip()),)


def _named(text: str) -> tuple[Assignment, ...]:
    found = _ASSIGNED.finditer(text)
    return tuple(Assignment(match[2].strip("\"'"), match[1]) for match in found)


def about_conf(text: str, release: Release) -> Iterator[Finding]:
    asked = assignments(text)
    read = _read_of(asked, release)
    for each in asked:
        if each is not read:
            yield _unread(each, read, release)
    if read is not None:
        yield from _about_string(str(read), read.conf, release, has_limit=False)


def _read_of(asked: tuple[Assignment, ...], release: Release) -> Assignment | None:
    names = ("", *release.conf_variables)
    return next((each for name in names for each in asked if each.variable == name), None)


def _unread(each: Assignment, read: Assignment | None, release: Release) -> Finding:
    names = " or ".join(release.conf_variables)
    if each.variable in release.conf_variables and read is not None:
        why = f"PyTorch {release.version} reads {read.variable} first"
    else:
        why = f"PyTorch {release.version} does not read {each.variable}; it reads {names}"
    return found("option_ignored", f"{each} is ignored: {why}", value=str(each))


def about_command(recording: Recording, release: Release) -> Iterator[Finding]:
    """Yield findings on environment variables in the recorded command that PyTorch ignores."""
    made = recording.provenance
    text = made.command if made is not None else ""
    asked = tuple(each for each in _named(text) if each.variable.endswith(_ALLOC_CONF))
    read = _read_of(asked, release)
    yield from (_unread(each, read, release) for each in asked if each is not read)


def _about_string(shown: str, conf: str, release: Release, *, has_limit: bool) -> Iterator[Finding]:
    try:
        config = parse_conf(conf, release)
    except ConfigError as error:
        yield _of_error(shown, conf, release, error)
        return
    refused = config.refused_handles()
    for text in config.unsafe_options() + ((refused,) if refused else ()):
        yield found("option_unsafe", text, value=shown)
    is_limited = has_limit or config.per_process_memory_fraction < 1.0
    for text in config.inert_options(has_limit=is_limited):
        yield found("option_inert", text, value=shown)
    if f"{_RESERVE}:" in conf.replace(" ", "") and config.expandable_segments_reserve is None:
        text = f"the value of {_RESERVE} is neither a share of the device nor GiB, such as 20G"
        yield found("option_ignored", text, value=shown)


def _of_error(shown: str, conf: str, release: Release, error: ConfigError) -> Finding:
    plain = conf.replace(" ", "")
    if _ASYNC_BACKEND in plain:
        # If the value is accepted with the native backend, only the choice of backend is an error.
        conf = plain.replace(_ASYNC_BACKEND, "backend:native")
        try:
            parse_conf(conf, release)
        except ConfigError as other:
            error = other
        else:
            return found("option_unmodelled", str(error), value=shown)
    return found("option_refused", f"{_refusal(error, conf)}; {_accepting(conf)}", value=shown)


def _refusal(error: ConfigError, conf: str) -> str:
    meant = _MEANT.search(conf)
    hint = f"; write {meant[1]}:{meant[2]}" if meant is not None else ""
    return f"{error}{hint}"


def _accepting(conf: str) -> str:
    versions = [version for version, release in RELEASES.items() if _is_accepted(conf, release)]
    if not versions:
        return "no release accepts it"
    return f"accepted by PyTorch {', '.join(versions)}"


def _is_accepted(conf: str, release: Release) -> bool:
    try:
        parse_conf(conf, release)
    except ConfigError:
        return False
    return True


def about_recorded(recording: Recording, release: Release) -> Iterator[Finding]:
    settings = recording.settings
    if settings is None:
        if not recording.is_requests:
            yield found("no_settings", "no settings are recorded, as up to PyTorch 2.2")
        return
    marks = [mark for trace in recording.devices for mark in trace.marks]
    has_limit = any(mark.kind is MarkKind.FRACTION for mark in marks)
    refused = False
    for each in _about_string(settings.conf, settings.conf, release, has_limit=has_limit):
        refused = refused or each.check in ("option_refused", "option_unmodelled")
        yield each
    made = recording.provenance
    is_followed = made is not None and made.conf_at_start is not None
    if refused or is_followed or any(mark.kind is MarkKind.SETTINGS for mark in marks):
        return  # the recorded changes of settings are replayed
    config = parse_conf(settings.conf, release)
    yield from _not_in_force(recording, config)
    for trace in recording.devices:
        yield from _not_as_set(trace, settings.expandable_segments)


def about_replaying_as(recording: Recording, release: Release) -> Iterator[Finding]:
    conf = "" if recording.settings is None else recording.settings.conf
    for each in _about_string(conf, conf, release, has_limit=True):
        if each.check == "option_refused":
            yield each


def _not_in_force(recording: Recording, config: AllocatorConfig) -> Iterator[Finding]:
    assert recording.settings is not None
    recorded = recording.settings.plain()
    for name, said in config.settings().items():
        value = recorded.get(name, said)
        if _is_same(value, said):
            continue
        text = (
            f"{name} was {value!r} at the end, but the recorded string {config.text!r} sets it to "
            f"{said!r}: options were set by a call, or the platform refused them"
        )
        yield found("settings", text, value=f"{name}: {value!r}")


def _is_same(value: object, said: object) -> bool:
    if isinstance(value, float) and isinstance(said, float):
        return math.isclose(value, said, rel_tol=1e-9)
    if isinstance(value, dict) and isinstance(said, dict):  # an interval without divisions has 0
        return {k: v for k, v in value.items() if v} == {k: v for k, v in said.items() if v}
    return value == said


def _not_as_set(trace: Trace, is_expandable: bool) -> Iterator[Finding]:
    there = trace.count(Action.SEGMENT_MAP) > 0 or any(
        segment.is_expandable for segment in trace.segments
    )
    plain = trace.count(Action.SEGMENT_ALLOC)
    if is_expandable and plain and not there:
        text = f"expandable_segments is True, but none of {plain:,} new segments is expandable"
        yield found("settings", text, device=trace.device, value="expandable_segments: True")
    elif not is_expandable and there:
        text = "expandable_segments is False at the end, but there are expandable segments"
        yield found("settings", text, device=trace.device, value="expandable_segments: False")
