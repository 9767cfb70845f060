"""Owner and category of each block of a recording, inferred from its stack and lifetime.

An owner is the part of the program that requested a block: a line, a stack, a module of the model,
a stream or a pool.  A category is its purpose, such as "parameters" or "gradients".
"""

from allocsim.ownership.held import (
    BY,
    Held,
    Moment,
    held_at,
    moment_of,
    moment_of_state,
    scene_of_run,
    scene_of_state,
)
from allocsim.ownership.rules import (
    CATEGORIES,
    RULES,
    UNKNOWN,
    CategoryRule,
    categories_of,
    purposes_of,
)
from allocsim.ownership.scene import Blocks, Scene, paired, rows_of
from allocsim.ownership.stacks import Phase, is_python
from allocsim.ownership.whose import (
    LINE,
    NO_STACK,
    Whose,
    is_plumbing,
    line_of,
    moved_lines,
    status_of,
)

__all__ = [
    "BY", "Blocks", "CATEGORIES", "CategoryRule", "Held", "LINE", "Moment", "NO_STACK", "Phase",
    "RULES", "Scene", "UNKNOWN", "Whose", "categories_of", "held_at", "is_plumbing", "is_python",
    "line_of", "moment_of", "moment_of_state", "moved_lines", "paired", "purposes_of", "rows_of",
    "scene_of_run", "scene_of_state", "status_of",
]  # fmt: skip
