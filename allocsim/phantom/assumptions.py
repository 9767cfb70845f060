"""Supply values that a simulated GPU cannot compute, and results that other ranks would send.

The hook (hook/sitecustomize.py) loads this file by its path into the interpreter of the recorded
program, so it imports only the standard library.  Replaced functions make the same allocations as
the originals.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from typing import Any

MOST_EXPERTS = 1024
"""Largest number of experts; a top-k over more scores is assumed not to choose experts."""


class Router:
    """Assumed choice of experts in a mixture-of-experts model, whose scores are not computed.

    is_skewed: True to send all tokens to the same experts; False to send each expert the same
        number of tokens, plus or minus one.
    """

    def __init__(self, torch: Any, *, is_skewed: bool) -> None:
        self.torch = torch
        self.is_skewed = is_skewed

    def choose(self, scores: Any, chosen: Any, dim: int) -> Any:
        """Return assumed indices of experts, in place of the index tensor of a top-k operator.

        Return None if the shapes show that the top-k does not choose experts.

        scores, chosen: input of the top-k, and its output of indices; only shapes are used.
        dim: dimension of the top-k.
        """
        if scores.dim() < 2 or dim % scores.dim() != scores.dim() - 1:
            return None
        experts, count = scores.shape[-1], chosen.shape[-1]
        if not 1 <= count < experts <= MOST_EXPERTS:
            return None
        torch = self.torch
        slots = torch.arange(count, device="cpu").expand(chosen.shape)
        if self.is_skewed:
            return slots
        tokens = chosen.numel() // count
        return (torch.arange(tokens * count, device="cpu") % experts).reshape(chosen.shape)


_ASKED = "_has_unfinished_sequences"


def end_at_max_length(module: Any) -> None:
    # `module` is transformers.generation.utils.  Ends generate() at the maximum length, because
    # other stopping criteria have no values.  Some releases of transformers lack these methods.
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


_LEAST = 1 << 14
"""Smallest number of elements of a host tensor that is not filled with random numbers."""


def leave_unfilled(torch: Any) -> None:
    """Patch `uniform_` of torch.Tensor to leave large host tensors unchanged, which saves time."""
    fill = torch.Tensor.uniform_

    @functools.wraps(fill)
    def uniform_(tensor: Any, *args: Any, **named: Any) -> Any:
        if tensor.device.type == "cpu" and tensor.numel() >= _LEAST:
            return tensor
        return fill(tensor, *args, **named)

    torch.Tensor.uniform_ = uniform_


_DIFFERS = "DDP expects same model across all ranks"


def answer_for_others(torch: Any) -> None:
    """Patch `torch` so that DistributedDataParallel works although only one rank runs."""
    dist = torch.distributed
    if not dist.is_available() or not hasattr(dist, "_verify_params_across_processes"):
        return
    dist._verify_params_across_processes = _verifying(torch, dist._verify_params_across_processes)
    if hasattr(dist, "Reducer"):
        dist.Reducer = _reducing(torch, dist.Reducer)
    for name in ("shutdown", "_shutdown", "abort"):
        if hasattr(dist.ProcessGroup, name):
            setattr(dist.ProcessGroup, name, _finishing(getattr(dist.ProcessGroup, name)))


def _finishing(end: Any) -> Any:

    @functools.wraps(end)
    def ended(group: Any, *args: Any, **named: Any) -> Any:
        # The method waits for the GPU, and a phantom GPU completes work only on request.
        ctypes.CDLL(None).device_finish_all()
        return end(group, *args, **named)

    return ended


def _verifying(torch: Any, verify: Any) -> Any:

    @functools.wraps(verify)
    def verified(group: Any, tensors: Any, *more: Any) -> None:
        device = ctypes.CDLL(None)
        # DDP copies values to the host here, which must not be reported as a read of the program.
        device.device_watch_reads(0)
        try:
            verify(group, tensors, *more)
        except RuntimeError as error:
            if _DIFFERS not in str(error):
                raise
            # If all ranks agree, PyTorch copies all sizes and strides to the device temporarily.
            n_numbers = sum(2 * tensor.dim() for tensor in tensors)
            torch.zeros(n_numbers, dtype=torch.long).to(tensors[0].device)
        finally:
            device.device_watch_reads(1)

    return verified


def _reducing(torch: Any, make: Any) -> Any:
    # The reducer takes this rank's gradients as the sum of all.

    def as_they_are(_: Any, bucket: Any) -> Any:
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    @functools.wraps(make, updated=())
    def made(*args: Any, **named: Any) -> Any:
        reducer = make(*args, **named)
        group = args[3] if len(args) > 3 else named.get("process_group")
        if torch.distributed.get_backend(group) == "fake":
            torch.distributed._register_comm_hook(reducer, None, as_they_are)
        return reducer

    return made
