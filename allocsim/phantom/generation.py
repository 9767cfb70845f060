"""Let `generate()` of transformers end on a phantom GPU.

Rule: this file runs in the program's interpreter, loaded by the hook from its path once the module
of transformers is loaded, so it imports only the standard library.

`generate()` reads from the GPU if any sequence is unfinished, and a phantom GPU has no such value.
Instead, generation ends when the sequences have the maximum length.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

__all__ = ["end_at_max_length"]

_ASKED = "_has_unfinished_sequences"


def end_at_max_length(module: Any) -> None:
    """Patch `module` so that generation ends after max_new_tokens or at max_length.

    module: transformers.generation.utils; not changed if it lacks the methods to patch.
    """
    criteria = getattr(module, "MaxLengthCriteria", None)
    mixin = getattr(module, "GenerationMixin", None)
    if criteria is None or not hasattr(mixin, _ASKED):
        return
    known = threading.local()
    judge, goes_on = criteria.__call__, getattr(mixin, _ASKED)

    @functools.wraps(judge)
    def judged(self: Any, input_ids: Any, *args: Any, **named: Any) -> Any:
        known.is_done = input_ids.shape[1] >= self.max_length
        return judge(self, input_ids, *args, **named)

    @functools.wraps(goes_on)
    def asked(*args: Any, **named: Any) -> Any:
        if getattr(known, "is_done", False):
            known.is_done = False
            return False
        return goes_on(*args, **named)

    criteria.__call__ = judged
    setattr(mixin, _ASKED, asked)
