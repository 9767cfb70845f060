"""Files that hold requests alone: sizes in order, without segments and so without a state.

What they lack is told in the recording's notes.  Such a recording is replayed by sizes, and there
is nothing that its addresses could be compared with.
"""

from allocsim.trace.requests.profiler import is_profiler_trace, read_profiler_trace
from allocsim.trace.requests.rows import is_rows, read_csv, read_lines, read_row_objects
from allocsim.trace.requests.timeline import is_timeline, read_timeline

__all__ = [
    "is_profiler_trace",
    "is_rows",
    "is_timeline",
    "read_csv",
    "read_lines",
    "read_profiler_trace",
    "read_row_objects",
    "read_timeline",
]
