"""Laws: a program's allocator requests at any size, derived from recordings at a few sizes.

A law holds in one regime: a range of sizes at which PyTorch runs the same kernels.
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
from allocsim.fitting.laws.repeated import BEFORE, Repeated, Unrolled
from allocsim.fitting.laws.serving import AFTER, BETWEEN, END, MAKE, START, STEP, Serving
from allocsim.fitting.laws.stored import (
    DATA,
    TRANSFORMERS,
    Laws,
    find_laws,
    installed_transformers,
    known_laws,
    numbers_of,
    transformers_release,
    write_laws,
)
from allocsim.fitting.laws.sums import Card
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
    "AFTER", "BEFORE", "BETWEEN", "CLASSIFIERS", "COLUMNS", "Card", "DATA", "EMPTY_CACHE",
    "END", "FAMILIES", "FREE", "Family", "Formula", "Law", "LawRows", "Laws", "MAKE", "REQUEST",
    "Repeated", "Requests", "SIZES", "START", "STEP", "Serving", "TRANSFORMERS", "Unrolled",
    "VARIABLES", "attention_splits", "family_of", "find_laws", "installed_transformers",
    "known_laws", "numbers_of", "prompt_regime", "regime_of", "requests_of", "step_regime",
    "transformers_release", "variables_of", "write_laws",
]  # fmt: skip
