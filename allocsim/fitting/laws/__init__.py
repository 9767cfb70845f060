"""Laws: formulas for the bytes of each allocator request of a program, for any batch or model size.

They are derived from recordings at a few sizes.  A law holds in one regime: a range of sizes at
which PyTorch runs the same kernels.
"""

from allocsim.fitting.laws.families import CLASSIFIERS, FAMILIES, Family, family_of
from allocsim.fitting.laws.law import (
    EMPTY_CACHE,
    FREE,
    REQUEST,
    Formula,
    Law,
    LawRows,
    Requests,
    requests_of,
)
from allocsim.fitting.laws.optimizers import OPTIMIZERS, Parameters, Steps, steps_of
from allocsim.fitting.laws.programs import (
    AFTER,
    AGAIN,
    BETWEEN,
    DROP,
    END,
    FIRST,
    LAST,
    MAKE,
    OPTIMIZER,
    START,
    STEP,
    ZERO,
    Serving,
    Training,
    made_by,
)
from allocsim.fitting.laws.repeated import BEFORE, Repeated, Unrolled
from allocsim.fitting.laws.stored import (
    DATA,
    SERVE,
    TRANSFORMERS,
    Laws,
    ProgramName,
    find_laws,
    installed_transformers,
    known_laws,
    known_programs,
    numbers_of,
)
from allocsim.fitting.laws.sums import Card, factored_way
from allocsim.fitting.laws.variables import (
    COLUMNS,
    SIZES,
    VARIABLES,
    attention_splits,
    prompt_regime,
    regime_of,
    step_regime,
    variables_of,
)

__all__ = [
    "AFTER", "AGAIN", "BEFORE", "BETWEEN", "CLASSIFIERS", "COLUMNS", "Card", "DATA", "DROP",
    "EMPTY_CACHE", "END", "FAMILIES", "FIRST", "FREE", "Family", "Formula", "LAST", "Law",
    "LawRows", "Laws", "MAKE", "OPTIMIZER", "OPTIMIZERS", "Parameters", "ProgramName", "REQUEST",
    "Repeated", "Requests", "SERVE", "SIZES", "START", "STEP", "Serving", "Steps", "TRANSFORMERS",
    "Training", "Unrolled", "VARIABLES", "ZERO", "attention_splits", "factored_way", "family_of",
    "find_laws", "installed_transformers", "known_laws", "known_programs", "made_by", "numbers_of",
    "prompt_regime", "regime_of", "requests_of", "step_regime", "steps_of", "variables_of",
]  # fmt: skip
