"""Functions that draw charts of a replay or a snapshot, and the data that the charts show."""

from importlib import import_module
from typing import TYPE_CHECKING

from allocsim._lazy import lazily

if TYPE_CHECKING:
    import allocsim.report.figures as figures  # noqa: PLR0402
    from allocsim.analysis.picture import Picture, Still, owners_of, picture_of, still_of

__all__ = ["Picture", "Still", "figures", "owners_of", "picture_of", "still_of"]

_find = lazily(globals(), {"analysis.picture": "Picture Still owners_of picture_of still_of"})


def __getattr__(name: str) -> object:
    return import_module("allocsim.report.figures") if name == "figures" else _find(name)
