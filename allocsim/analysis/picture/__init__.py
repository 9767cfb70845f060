"""History of a replay as columns of numbers, for charts and HTML pages."""

from allocsim.analysis.picture.address_map import AddressMap, address_map, axis_of, owners_of
from allocsim.analysis.picture.picture import (
    Picture,
    WhatIf,
    others_of,
    picture_of,
    picture_prepared,
    shown_device,
    what_if,
)
from allocsim.analysis.picture.states import (
    CLASS_NAMES,
    STILL_KINDS,
    Instant,
    Still,
    block_sizes,
    class_of,
    still_of,
)

__all__ = [
    "AddressMap", "CLASS_NAMES", "Instant", "Picture", "STILL_KINDS", "Still", "WhatIf",
    "address_map", "axis_of", "block_sizes", "class_of", "others_of", "owners_of",
    "picture_of", "picture_prepared", "shown_device", "still_of", "what_if",
]  # fmt: skip
