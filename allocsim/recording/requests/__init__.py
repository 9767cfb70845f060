"""Read files that contain only requests and frees, without segments.

`Recording.notes` describes the missing data.  Addresses of these recordings only distinguish
blocks, so a replay cannot be compared with recorded addresses.
"""

from allocsim.recording.requests.profiler import is_profiler_trace, read_profiler_trace
from allocsim.recording.requests.rows import (
    is_rows,
    is_timeline,
    read_csv,
    read_lines,
    read_row_objects,
    read_timeline,
)

__all__ = [
    "is_profiler_trace", "is_rows", "is_timeline", "read_csv", "read_lines", "read_profiler_trace",
    "read_row_objects", "read_timeline",
]  # fmt: skip
