"""History of a replay as columns of numbers, for charts and HTML pages."""

from allocsim.analysis.picture.address_map import AddressMap, address_map, axis_of, owners_of
from allocsim.analysis.picture.block_sizes import CLASS_NAMES, block_sizes, class_of
from allocsim.analysis.picture.instant import Instant
from allocsim.analysis.picture.picture import (
    Picture,
    others_of,
    picture_of,
    picture_prepared,
    prepare_one,
    shown_device,
)
from allocsim.analysis.picture.still import STILL_KINDS, Still, is_still, still_of
from allocsim.analysis.picture.what_if import WhatIf, what_if

__all__ = [
    "AddressMap",
    "CLASS_NAMES",
    "Instant",
    "Picture",
    "STILL_KINDS",
    "Still",
    "WhatIf",
    "address_map",
    "axis_of",
    "block_sizes",
    "class_of",
    "is_still",
    "others_of",
    "owners_of",
    "picture_of",
    "picture_prepared",
    "prepare_one",
    "shown_device",
    "still_of",
    "what_if",
]
