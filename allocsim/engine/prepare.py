"""The devices of a recording made ready: which release, which settings, which start.

Rule: what a user says comes first, then what is recorded, then what the layout of the file tells;
the reason is a sentence beside the answer.  What is found out about a recording is kept as long as
the recording is, for one release and one set of hints: who asks for setting after setting has it
looked through, read and proved once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from weakref import WeakKeyDictionary

from allocsim.core import RELEASES as MODELLED
from allocsim.core import parse_conf
from allocsim.engine.hints import Hints
from allocsim.engine.prepared import Prepared
from allocsim.engine.setting import Setting
from allocsim.engine.which_release import can_be_of, releases_of
from allocsim.errors import ConfigError, RecordingError
from allocsim.pages import keep_pages
from allocsim.state import SegmentState
from allocsim.trace import Recording, Rewound, refuse_unsound

__all__ = ["prepare", "prepare_made"]

_Asked = tuple[int | None, str | None, Hints]
"""A device, a release and hints."""

_LAST: WeakKeyDictionary[Recording, tuple[_Asked, tuple[Prepared, ...]]] = WeakKeyDictionary()
"""Of each recording, what was asked for last, and the answer."""
_SOUND: WeakKeyDictionary[Recording, dict[int, Rewound]] = WeakKeyDictionary()
"""The state of each device before its first entry, by recording of several devices."""


def prepare(
    recording: Recording,
    device: int | None = None,
    torch_version: str | None = None,
    *,
    hints: Hints | None = None,
) -> tuple[Prepared, ...]:
    """Every device of `recording`, or the one asked for, made ready.

    torch_version: None for the release that the recording tells.  hints: what is known of the
    program besides.
    Raises RecordingError if there is nothing to replay, ConfigError for an unknown release and for
    hints that the release refuses.
    """
    keep_pages()
    asked = device, torch_version, hints or Hints()
    last = _LAST.get(recording)
    if last is not None and last[0] == asked:
        return last[1]
    found = _from_empty(recording, *asked)
    if torch_version is not None and not can_be_of(recording, found[0].release.version):
        written = prepare(recording, device, hints=hints)
        found = [
            replace(each, written=own, start=own.start)
            for each, own in zip(found, written, strict=True)
        ]
    else:
        starts = _before_first(recording)
        if not recording.is_requests:  # else what was there before is requested first
            found = [replace(each, start=_start_of(starts, each, recording)) for each in found]
    _LAST[recording] = asked, tuple(found)
    return tuple(found)


def _before_first(recording: Recording) -> dict[int, Rewound]:
    """Return each device's state before its first entry.  Raises RecordingError if unsound.

    The result is cached for recordings of several devices.
    """
    if len(recording.devices) == 1:
        return refuse_unsound(recording)
    found = _SOUND.get(recording)
    if found is None:
        found = _SOUND[recording] = refuse_unsound(recording)
    return found


def prepare_made(recording: Recording, device: int | None = None) -> tuple[Prepared, ...]:
    """The same of a recording that the model has just made, from an empty device on.

    Nothing in it is looked through, and its marks are all that was called.
    """
    found = _from_empty(recording, device, None, Hints())
    return tuple(replace(each, is_made=True) for each in found)


def _from_empty(
    recording: Recording, device: int | None, torch_version: str | None, hints: Hints
) -> list[Prepared]:
    """The devices as if they held nothing before the first entry."""
    possible, note = releases_of(recording, torch_version)
    release = MODELLED[possible[-1]]
    for _, changed in hints.settings:
        parse_conf(changed, release)  # a wrong one is the user's to know
    conf = _conf_of(recording) if hints.first_conf is None else hints.first_conf
    try:
        config = parse_conf(conf, release)
    except ConfigError as error:
        what = f"its settings {conf[:80]!r} are refused by release {release.version}: {error}"
        raise RecordingError(recording.path, what) from None
    traces = recording.devices if device is None else (recording.device(device),)
    return [
        Prepared(
            path=recording.path,
            trace=trace,
            release=release,
            release_note=note,
            recorded=Setting(conf),
            config=config,
            has_settings=_has_settings(recording, hints),
            start=(),
            provenance=recording.provenance,
            releases=possible,
            hints=hints,
            marks=hints.marks(trace),
            is_requests=recording.is_requests,
            file_notes=recording.notes,
        )
        for trace in traces
    ]


def _has_settings(recording: Recording, hints: Hints) -> bool:
    """Whether anything tells the settings: the file, its user, or who made it."""
    made = recording.provenance
    told = made is not None and made.conf_at_start is not None
    return told or recording.settings is not None or hints.first_conf is not None


def _conf_of(recording: Recording) -> str:
    """The option string that the recorded program began with."""
    made = recording.provenance
    if made is not None and made.conf_at_start is not None:
        return made.conf_at_start
    return recording.settings.conf if recording.settings is not None else ""


def _start_of(
    starts: Mapping[int, Rewound], prepared: Prepared, recording: Recording
) -> tuple[SegmentState, ...]:
    recorded, trace = recording.settings, prepared.trace
    start = starts.get(trace.device) or Rewound(trace)
    try:
        return start.state(
            rounded=prepared.config.round_size,
            max_split_size=recorded.max_split_size if recorded is not None else None,
        )
    except RecordingError as error:
        what = str(error).partition(": ")[2].removeprefix(f"entry {error.entry}: ")
        raise RecordingError(recording.path, what, entry=error.entry) from None
