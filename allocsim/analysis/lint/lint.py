"""Collect all findings about a recording or a value of PYTORCH_CUDA_ALLOC_CONF.

Nothing is replayed, so lint takes about as long as loading the file.  Only `replay` can prove that
the model reproduces the recorded run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from allocsim._repr import Shown
from allocsim.analysis.lint.checks import (
    about_command,
    about_conf,
    about_history,
    about_processes,
    about_recorded,
    about_replaying_as,
    lost_entries,
)
from allocsim.analysis.lint.finding import ERROR, NOTE, WARNING, Finding, found, gathered
from allocsim.core import NEWEST, RELEASES, Release, find_release
from allocsim.recording import Recording, find_defects
from allocsim.replaying import can_be_of, choose_releases, provenance_notes, workspace_note
from allocsim.state import SegmentState

_SEVERITIES = (ERROR, WARNING, NOTE)
_OF_TWO_RUNS = ("overlap", "free_without_allocation", "history")
"""Checks that fail if a file contains the entries of two runs, one after the other."""


@dataclass(frozen=True, slots=True, repr=False)
class Lint(Shown):
    """All findings, most severe first.

    path: path of the recording; "" if only a conf was checked.
    release_note: reason for choosing this release, as a sentence.
    conf: recorded PYTORCH_CUDA_ALLOC_CONF; None if it is not recorded.
    asked: conf that the user wants to set; None if there is none.
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

    conf: settings to check too: a value of PYTORCH_CUDA_ALLOC_CONF, or a shell assignment such as
        "PYTORCH_ALLOC_CONF=expandable_segments:True".
    torch_version: release that a replay would model; None for the recorded release.
    Raises ConfigError for an unknown release.
    """
    possible, release_note = choose_releases(recording, torch_version)
    release = RELEASES[possible[-1]]
    findings = [
        *_about_data(recording),
        *_about_making(recording, release, torch_version),
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
    """Check a value of PYTORCH_CUDA_ALLOC_CONF, or a shell assignment, for one release.

    torch_version: release; None for the newest.
    Raises ConfigError for an unknown release.
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


def _about_making(recording: Recording, release: Release, asked: str | None) -> Iterator[Finding]:
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
