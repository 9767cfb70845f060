"""Sweep on a real Dask cluster of processes with one killed worker."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from allocsim import tune
from tests.tune.conftest import ragged

distributed = pytest.importorskip("distributed")
pytestmark = pytest.mark.filterwarnings("ignore")

Write = Callable[..., Path]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with (
        warnings.catch_warnings(),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, processes=True
        ) as found,
    ):
        yield found


def test_dask_cluster_gives_the_results_of_one_process(cluster: Any, write: Write) -> None:
    path = write(ragged(6))
    with distributed.Client(cluster) as client:
        far = tune(path, "2GiB", executor=client.get_executor())
    near = tune(path, "2GiB")
    assert [(row.setting, row.parts) for row in far.rows] == [
        (row.setting, row.parts) for row in near.rows
    ]


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def test_a_killed_worker_loses_no_row(cluster: Any, write: Write, tmp_path: Path) -> None:
    path = write(ragged(7, steps=120))
    results = tmp_path / "results.jsonl"
    finished: list[int] = []
    with distributed.Client(cluster) as client:
        victims = list(client.run(os.getpid).values())

        def kill() -> None:
            while len(lines(results)) < 10:
                time.sleep(0.01)
            os.kill(victims[0], signal.SIGKILL)
            finished.append(len(lines(results)))

        killer = threading.Thread(target=kill)
        killer.start()
        far = tune(path, "2GiB", executor=client.get_executor(), results=results)
        killer.join()
    near = tune(path, "2GiB")
    assert [(row.setting, row.parts) for row in far.rows] == [
        (row.setting, row.parts) for row in near.rows
    ]
    assert not any(row.error for row in far.rows)
    keys = [json.loads(line)["key"] for line in lines(results)[1:]]
    assert len(keys) == len(set(keys)) >= sum(not row.same_as for row in far.rows)
    assert finished[0] < len(keys) / 2, "the worker was killed too late to matter"


def test_the_command_takes_a_scheduler(cluster: Any, write: Write, capsys: Any) -> None:
    from allocsim.cli import main  # noqa: PLC0415

    address = cluster.scheduler_address
    assert main(["tune", str(write(ragged(6))), "--dask", address, "--device-memory", "2GiB"]) == 0
    assert "Best" in capsys.readouterr().out


def test_tune_reports_a_missing_dask_scheduler(write: Write, capsys: Any) -> None:
    from allocsim.cli import main  # noqa: PLC0415

    command = ["tune", str(write(ragged(6))), "--dask", "tcp://127.0.0.1:9"]
    assert main(command) == 2
    assert "no Dask scheduler answers at tcp://127.0.0.1:9" in capsys.readouterr().err
