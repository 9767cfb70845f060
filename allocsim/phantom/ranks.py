"""Let one rank of a distributed job run on a phantom GPU without the other ranks.

Rule: this file runs in the program's interpreter, loaded by the hook from its path once CUDA is
used on a phantom GPU, so it imports only the standard library.  It replaces only results that
depend on values of other ranks, and makes the same allocations as the replaced code.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

_DIFFERS = "DDP expects same model across all ranks"


def answer_for_others(torch: Any) -> None:
    """Patch `torch` so that DistributedDataParallel does not wait for other ranks."""
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
    """Wrap the method that ends a process group so that all work is completed first.

    The method waits for the GPU, and a phantom GPU completes work only on request.
    """

    @functools.wraps(end)
    def ended(group: Any, *args: Any, **named: Any) -> Any:
        ctypes.CDLL(None).device_finish_all()
        return end(group, *args, **named)

    return ended


def _verifying(torch: Any, verify: Any) -> Any:
    """Wrap DDP's check that all ranks have equal parameters, so that it succeeds."""

    @functools.wraps(verify)
    def verified(group: Any, tensors: Any, *more: Any) -> None:
        device = ctypes.CDLL(None)
        # DDP copies values to the host here; the program must not be reported for it.
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
    """Return a constructor of DDP's reducer that takes this rank's gradients as the sum of all.

    With the backend "fake", no other rank sends gradients.
    make: PyTorch's constructor.
    """

    def as_they_are(_: Any, bucket: Any) -> Any:
        """Return a completed future with this rank's gradients in `bucket`, unchanged."""
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
