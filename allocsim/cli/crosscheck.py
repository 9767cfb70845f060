"""`allocsim crosscheck`: run random calls of the allocator in the model and in real PyTorch.

Exit code 1 means that their results differ; exit code 2 means that PyTorch could not be run.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from allocsim.cli.options import Commands, UsageError, add_command, add_shared, count, processes
from allocsim.cli.output import ProgressBar, write_report

if TYPE_CHECKING:
    from allocsim.verify import Source

_SUMMARY = "compare the model with real PyTorch on random scripts"
_DESCRIPTION = """\
Generates scripts of allocations, frees, streams, pools, limits and settings,
runs each through real PyTorch and through the model, and compares every
address, statistic, entry, segment and message.  The first divergence is made
as short as possible and printed as a test.  Real PyTorch is the one installed
for --python, on a phantom GPU (--phantom, the default) or on the GPU of this
machine (--gpu).  With --torch, it is the allocator alone, from wheels that
`python -m allocsim.phantom fetch` stored in the cache.  With --host, the
scripts use pinned host memory, and the allocator is that of --python."""
_DIVERGED = 1
_JOBS_ON_GPU = 4
"""Default number of processes with --gpu.

Each process mostly waits for the driver, which can create several CUDA contexts at a time.
"""


def add_to(commands: Commands) -> None:
    parser = add_command(commands, "crosscheck", _SUMMARY, _DESCRIPTION, run)
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--phantom", action="store_true", help="use a phantom GPU (default)")
    where.add_argument("--gpu", action="store_true", help="use the GPU of this machine")
    add = parser.add_argument
    releases = "releases whose allocator is taken from the cache, or 'all' that it holds"
    add("--torch", metavar="RELEASE", nargs="+", help=releases)
    python = "Python interpreter with a CUDA build of torch (default: this one)"
    add("--python", metavar="PATH", help=python)
    add("--host", action="store_true", help="compare the allocator of pinned host memory")
    add("--seed", metavar="N", type=count, default=0, help="first seed (default: 0)")
    ops = "minimum number of operations for each release (default: 100000)"
    add("--ops", metavar="N", type=count, default=100_000, help=ops)
    conf = "PYTORCH_CUDA_ALLOC_CONF of every script (default: random)"
    add_shared(parser, "--conf", text=conf)
    jobs = f"number of processes (default: 1, with --gpu {_JOBS_ON_GPU})"
    add("--jobs", metavar="N", type=processes, help=jobs)
    add_shared(parser, "--json")


def run(arguments: argparse.Namespace) -> int:
    from allocsim.core import find_release, parse_conf
    from allocsim.report import crosscheck as report
    from allocsim.verify import CrossCheck, crosscheck

    jobs = arguments.jobs or (_JOBS_ON_GPU if arguments.gpu else 1)
    sources, route = _sources(arguments, jobs)
    if arguments.conf is not None:
        for source in sources:  # refuses bad settings before anything runs
            parse_conf(arguments.conf, find_release(source.release))
    check = CrossCheck(sources, arguments.seed, max(1, arguments.ops), arguments.conf, jobs)
    with ProgressBar() as bar:
        found = crosscheck(
            check,
            bar.counted(lambda n, total, rate: f"{n:,} of {total:,} operations, {rate:,.0f}/s"),
        )
    write_report(arguments, report, found, route)
    return 0 if found.divergence is None else _DIVERGED


def _sources(arguments: argparse.Namespace, jobs: int) -> tuple[tuple[Source, ...], str]:
    if arguments.host and (arguments.torch or arguments.gpu):
        raise UsageError(
            "--host needs a whole PyTorch on a phantom GPU; give its interpreter with --python "
            "and leave out --torch and --gpu"
        )
    if arguments.torch:
        if arguments.gpu or arguments.python:
            raise UsageError(
                "--torch takes the allocator from the cache and needs neither --gpu nor --python"
            )
        return _wheels(arguments.torch), "the allocator of each release, over the phantom GPU"
    from allocsim.core import find_release
    from allocsim.phantom import find_torch
    from allocsim.verify import InstalledSource

    install = find_torch(arguments.python or sys.executable)
    release = find_release(install.version)
    if arguments.host and release.host_stats is None:
        raise UsageError(
            f"{install.python} has torch {install.version}; --host expects 2.7 or later, which "
            "reports statistics of pinned memory"
        )
    place = "on a real GPU" if arguments.gpu else "over the phantom GPU"
    source = InstalledSource(
        release.version, install.python, not arguments.gpu, jobs, is_host=arguments.host
    )
    return (source,), f"torch {install.version} as {install.python} has it, {place}"


def _wheels(releases: list[str]) -> tuple[Source, ...]:
    from allocsim.core import NEWEST, RELEASES, find_release
    from allocsim.phantom import cached_wheel
    from allocsim.verify import WheelSource

    if releases == ["all"]:
        releases = [release for release in RELEASES if cached_wheel(release) is not None]
        if not releases:
            raise UsageError(
                "no release is in the cache; python -m allocsim.phantom fetch --torch "
                f"{NEWEST} downloads one"
            )
    sources = tuple(WheelSource(find_release(release).version) for release in releases)
    for source in sources:
        source.open()  # raises an error for a file missing in the cache, before anything runs
    return sources
