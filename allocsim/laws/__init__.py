"""Programs by law: what a model asks the allocator for at any size, from recordings at a few."""

from allocsim.laws.families import CLASSIFIERS, FAMILIES, Family, family_of
from allocsim.laws.formula import Formula
from allocsim.laws.law import EMPTY_CACHE, FREE, REQUEST, Law, Requests
from allocsim.laws.repeated import BEFORE, Repeated, Unrolled
from allocsim.laws.stored import DATA, Laws, find_laws, known_laws, write_laws
from allocsim.laws.variables import (
    COLUMNS,
    SIZES,
    VARIABLES,
    Card,
    attention_splits,
    regime_of,
    variables_of,
)

__all__ = [
    "BEFORE", "CLASSIFIERS", "COLUMNS", "Card", "DATA", "EMPTY_CACHE", "FAMILIES", "FREE", "Family",
    "Formula", "Law", "Laws", "REQUEST", "Repeated", "Requests", "SIZES", "Unrolled", "VARIABLES",
    "attention_splits", "family_of", "find_laws", "known_laws", "regime_of", "variables_of",
    "write_laws",
]  # fmt: skip
