"""Owner and category of each block of a recording, inferred from its stack and lifetime."""

from allocsim.owners.held import BY, Held, held_at, scene_of_run, scene_of_state
from allocsim.owners.moment import Moment, moment_of, moment_of_state
from allocsim.owners.moved import LINE, moved_lines
from allocsim.owners.purposes import purposes_of
from allocsim.owners.rules import CATEGORIES, RULES, UNKNOWN, Rule
from allocsim.owners.scene import Scene
from allocsim.owners.stacks import Phase
from allocsim.owners.status import status_of
from allocsim.owners.whose import NO_STACK, Whose, is_plumbing, line_of

__all__ = [
    "BY", "CATEGORIES", "Held", "LINE", "Moment", "NO_STACK", "Phase", "RULES", "Rule", "Scene",
    "UNKNOWN", "Whose", "held_at", "is_plumbing", "line_of", "moment_of", "moment_of_state",
    "moved_lines", "purposes_of", "scene_of_run", "scene_of_state", "status_of",
]  # fmt: skip
