"""Python stacks from which optimizers request memory, keyed by purpose, such as "exp_avg".

Source: recordings of PyTorch 2.15.0 and bitsandbytes 0.50.2.
"""

from __future__ import annotations

import numpy as np

from allocsim.recording import Frame, FrameTable

_PROGRAM = "program.py:32:<module>"
_WRAPPED = f"optim/optimizer.py:567:wrapper {_PROGRAM}"
_ADAM = f"optim/adam.py:239:step optim/optimizer.py:79:_use_grad {_WRAPPED}"
_ADAM_RUNS = (
    "optim/adam.py:967:adam optim/optimizer.py:157:maybe_fallback optim/adam.py:249:step "
    f"optim/optimizer.py:79:_use_grad {_WRAPPED}"
)
_SGD_RUNS = "optim/sgd.py:303:sgd optim/sgd.py:128:step optim/optimizer.py:79:_use_grad " + _WRAPPED
_FACTORED = f"utils/_contextlib.py:158:no_grad {_WRAPPED}"
_FACTORED_RUNS = (
    "optim/_adafactor.py:641:adafactor optim/optimizer.py:157:maybe_fallback "
    f"optim/_adafactor.py:156:step {_FACTORED}"
)
_INIT = f"optim/_adafactor.py:146:step {_FACTORED}"
_BNB = "../bitsandbytes/optim/optimizer.py"
_8_BIT = f"utils/_contextlib.py:158:no_grad {_BNB}:331:step {_FACTORED}"
_NORM = "functional.py:1888:norm _tensor.py:902:norm optim/_adafactor.py"

STACKS = {
    "step": f"optim/adam.py:170:_init_group {_ADAM}",
    "exp_avg": f"optim/adam.py:179:_init_group {_ADAM}",
    "exp_avg_sq": f"optim/adam.py:183:_init_group {_ADAM}",
    "square roots": f"optim/adam.py:791:_multi_tensor_adam {_ADAM_RUNS}",
    "denominator": f"optim/adam.py:545:_single_tensor_adam {_ADAM_RUNS}",
    "momentum": f"optim/sgd.py:454:_multi_tensor_sgd {_SGD_RUNS}",
    "row_var": f"optim/_adafactor.py:105:_init_group {_INIT}",
    "col_var": f"optim/_adafactor.py:110:_init_group {_INIT}",
    "variance": f"optim/_adafactor.py:112:_init_group {_INIT}",
    "norm": f"{_NORM}:382:_single_tensor_adafactor {_FACTORED_RUNS}",
    "row_mean": f"optim/_adafactor.py:395:_single_tensor_adafactor {_FACTORED_RUNS}",
    "col_mean": f"optim/_adafactor.py:402:_single_tensor_adafactor {_FACTORED_RUNS}",
    "estimate": f"optim/_adafactor.py:407:_single_tensor_adafactor {_FACTORED_RUNS}",
    "mean": f"optim/_adafactor.py:408:_single_tensor_adafactor {_FACTORED_RUNS}",
    "squares": f"optim/_adafactor.py:412:_single_tensor_adafactor {_FACTORED_RUNS}",
    "update": f"optim/_adafactor.py:415:_single_tensor_adafactor {_FACTORED_RUNS}",
    "qmap": f"{_BNB}:515:init_state {_8_BIT}",
    "state1": f"{_BNB}:384:get_state_buffer {_BNB}:518:init_state {_8_BIT}",
    "state2": f"{_BNB}:384:get_state_buffer {_BNB}:521:init_state {_8_BIT}",
    "absmax1": f"{_BNB}:528:init_state {_8_BIT}",
    "absmax2": f"{_BNB}:529:init_state {_8_BIT}",
    "rms": f"{_NORM}:420:_single_tensor_adafactor {_FACTORED_RUNS}",
}
"""Stack of the requests for each purpose, innermost frame first; paths are relative to torch."""

GROUPS = {name: number for number, name in enumerate(STACKS)}
"""Index in `STACKS` of each purpose's stack."""


def with_optimizers(stacks: FrameTable) -> FrameTable:
    frames: dict[Frame, int] = {}
    flat, lengths = [], []
    for text in STACKS.values():
        each = [_frame(word) for word in text.split()]
        flat += [len(stacks.frames) + frames.setdefault(frame, len(frames)) for frame in each]
        lengths.append(len(each))
    return FrameTable(
        (*stacks.frames, *frames),
        np.concatenate([stacks.flat, np.array(flat, dtype=np.int32)]),
        np.concatenate([stacks.offsets, stacks.offsets[-1] + np.cumsum(lengths)]),
    )


def _frame(text: str) -> Frame:
    file, line, name = text.split(":")
    folder = "" if text == _PROGRAM else "site-packages/torch/"
    return Frame((folder + file).replace("torch/../", ""), name, int(line))
