"""Writers of recordings in the formats of other tools."""

from allocsim.report.formats.format import (
    FORMATS,
    Format,
    convert,
    endings,
    format_of,
    write_as,
)
from allocsim.report.formats.perfetto import perfetto_events
from allocsim.report.formats.rows import COLUMNS

__all__ = [
    "COLUMNS",
    "FORMATS",
    "Format",
    "convert",
    "endings",
    "format_of",
    "perfetto_events",
    "write_as",
]
