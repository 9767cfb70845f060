"""Capture of PyTorch's memory history from inside the program.

    from allocsim.capture import capture

    with capture("run.pickle"):
        train()

This package imports only the standard library and never imports torch itself: it waits until the
program imports it.  Errors of a capture are logged and do not stop the program.  The files have the
format of `allocsim record`.
"""

from allocsim.capture.session import MAX_ENTRIES, Capture, capture
from allocsim.capture.starts import for_composer, for_lightning, for_transformers, install

__all__ = [
    "MAX_ENTRIES", "Capture", "capture", "for_composer", "for_lightning", "for_transformers",
    "install",
]  # fmt: skip
