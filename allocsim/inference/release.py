"""Releases of PyTorch that can have written a recording, and the release to model.

The user's choice has precedence, then the release noted by `allocsim record`, then the layout of
the file.  If several releases write that layout, the newest is modelled.
"""

from __future__ import annotations

from allocsim.core import RELEASES as MODELLED
from allocsim.core import find_release
from allocsim.recording import Recording

__all__ = ["can_be_of", "releases_of"]


def releases_of(recording: Recording, torch_version: str | None) -> tuple[tuple[str, ...], str]:
    """Return the possible releases, the modelled one last, and a sentence with the reason."""
    if torch_version is not None:
        version = find_release(torch_version).version
        return (version,), f"PyTorch {version}: as requested"
    made_by = recording.provenance.release if recording.provenance is not None else ""
    if made_by in MODELLED:
        return (made_by,), f"PyTorch {made_by}: as recorded"
    possible = tuple(version for version in recording.releases if version in MODELLED)
    # A file of requests has no layout of PyTorch's.
    if not possible or recording.is_requests:
        newest = list(MODELLED)[-1]
        return tuple(MODELLED), f"PyTorch {newest}: the newest, since the file names no release"
    newest = possible[-1]
    if len(possible) == 1:
        return possible, f"PyTorch {newest}: no other release writes this layout"
    return (
        possible,
        f"PyTorch {newest}: the newest release that writes this layout "
        f"({possible[0]} to {possible[-1]})",
    )


def can_be_of(recording: Recording, version: str) -> bool:
    """Return True if the release `version` can have written the recording."""
    possible, _ = releases_of(recording, None)
    return version in possible
