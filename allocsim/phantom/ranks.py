"""What keeps a rank of a distributed job from running alone over a phantom: values of the others.

Rule: runs in the program's interpreter, loaded by the hook from its path, once CUDA is in use on
a phantom; only the standard library is imported.  Nothing is changed but two answers that depend on
values which no phantom has, and what else they allocate is allocated.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

__all__ = ["answer_for_others"]

_DIFFERS = "DDP expects same model across all ranks"


def answer_for_others(torch: Any) -> None:
    """Lets DistributedDataParallel run where no other rank answers."""
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
    """The end of a group waits until a GPU has done its work, which a phantom does when told."""

    @functools.wraps(end)
    def ended(group: Any, *args: Any, **named: Any) -> Any:
        ctypes.CDLL(None).device_finish_all()
        return end(group, *args, **named)

    return ended


def _verifying(torch: Any, verify: Any) -> Any:
    """DDP's check that all ranks have the same parameters, which reads their numbers back."""

    @functools.wraps(verify)
    def verified(group: Any, tensors: Any, *more: Any) -> None:
        device = ctypes.CDLL(None)
        device.device_watch_reads(0)
        try:
            verify(group, tensors, *more)
        except RuntimeError as error:
            if _DIFFERS not in str(error):
                raise
            # Where the numbers agree, sizes and strides of all go to the device for a moment.
            n_numbers = sum(2 * tensor.dim() for tensor in tensors)
            torch.zeros(n_numbers, dtype=torch.long).to(tensors[0].device)
        finally:
            device.device_watch_reads(1)

    return verified


def _reducing(torch: Any, make: Any) -> Any:
    """DDP's reducer: the fake process group's futures hold no gradients, so it is given them."""

    def as_they_are(_: Any, bucket: Any) -> Any:
        """Each rank keeps its own gradients."""
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
