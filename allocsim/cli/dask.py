"""Execution on a Dask cluster, which needs the extra `allocsim[dask]`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from allocsim.cli.usage import UsageError

if TYPE_CHECKING:
    from concurrent.futures import Executor
    from contextlib import ExitStack

__all__ = ["dask_executor"]


def dask_executor(address: str, stack: ExitStack) -> Executor:
    """Return an executor that runs calls on the workers of the Dask scheduler at `address`.

    The connection is closed with `stack`. Raises UsageError if Dask is not installed, or no
    scheduler answers.
    """
    from importlib import import_module  # noqa: PLC0415

    try:
        distributed = import_module("distributed")
    except ImportError:
        raise UsageError("--dask needs Dask: pip install 'allocsim[dask]'") from None
    try:
        client = stack.enter_context(distributed.Client(address, timeout="10s"))
    except (OSError, ValueError, TimeoutError) as error:
        raise UsageError(f"no Dask scheduler answers at {address} ({error})") from None
    executor: Executor = client.get_executor()
    return executor
