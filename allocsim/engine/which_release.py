"""Which release a recording is replayed as, and which can have written it.

Rule: what the user says goes first, then what `allocsim record` noted, then the layout; of a layout
that several releases write the newest is modelled.
"""

from __future__ import annotations

from allocsim.core import RELEASES as MODELLED
from allocsim.core import find_release
from allocsim.trace import Recording

__all__ = ["can_be_of", "releases_of"]


def releases_of(recording: Recording, torch_version: str | None) -> tuple[tuple[str, ...], str]:
    """The releases that it can be, of which the last is modelled, and why it is that one."""
    if torch_version is not None:
        version = find_release(torch_version).version
        return (version,), f"PyTorch {version}: as asked"
    made_by = recording.provenance.release if recording.provenance is not None else ""
    if made_by in MODELLED:
        return (made_by,), f"PyTorch {made_by}: as recorded"
    possible = tuple(version for version in recording.releases if version in MODELLED)
    if not possible or recording.is_requests:
        newest = list(MODELLED)[-1]
        return tuple(MODELLED), f"PyTorch {newest}: the newest, since the file tells none"
    newest = possible[-1]
    if len(possible) == 1:
        return possible, f"PyTorch {newest}: no other release writes this layout"
    return (
        possible,
        f"PyTorch {newest}: the newest of those that write this layout "
        f"({possible[0]} to {possible[-1]})",
    )


def can_be_of(recording: Recording, version: str) -> bool:
    """Whether the release of `version` can have written the recording."""
    possible, _ = releases_of(recording, None)
    return version in possible
