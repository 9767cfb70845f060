"""Capture of PyTorch's memory history from inside the program.

    from allocsim.capture import capture

    with capture("run.pickle"):
        train()

The package imports only the standard library, uses torch only after the program has imported it,
and raises no exception in the program.  It writes the same files as `allocsim record`.
"""

from allocsim.capture.session import MAX_ENTRIES, Capture, capture
from allocsim.capture.starts import for_composer, for_lightning, for_transformers, install

__all__ = [
    "MAX_ENTRIES", "Capture", "capture", "for_composer", "for_lightning", "for_transformers",
    "install",
]  # fmt: skip
