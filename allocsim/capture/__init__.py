"""Recording inside one's own program: PyTorch's memory history, written when it matters.

    from allocsim.capture import capture

    with capture("run.pickle"):
        train()

Rule: the program does not notice.  Importing this imports the standard library alone; torch is used
once the program has imported it, and nothing is raised into the program.  The files are those of
`allocsim record`: PyTorch's snapshot with one more key.
"""

from allocsim.capture.callbacks import for_composer, for_lightning, for_transformers
from allocsim.capture.installed import install
from allocsim.capture.session import MAX_ENTRIES, Capture, capture

__all__ = [
    "MAX_ENTRIES",
    "Capture",
    "capture",
    "for_composer",
    "for_lightning",
    "for_transformers",
    "install",
]
