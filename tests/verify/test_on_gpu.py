"""Scripts on a real GPU: the driver's decisions are read, everything else is predicted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from allocsim.core import RELEASES
from allocsim.core.device import Device
from allocsim.units import GIB, MIB
from allocsim.verify import RealAnswer, Script
from allocsim.verify.comparison import judge
from allocsim.verify.generator import make_script
from allocsim.verify.installed import on_gpu
from allocsim.verify.script import Op

from .right_model import MISTAKE, RightModel

HANDLES = {n: 0x7F00_0000_1000 + 0x2340 * n if n else 0 for n in range(64)}
CONTEXT = 480 * MIB + 4711


class RealGpu(RightModel):
    """Device with its own addresses, handles and free memory."""

    def run(self, script: Script) -> RealAnswer:
        self.conditions = {"handles": HANDLES, "context_memory": CONTEXT}
        moved = replace(script, base_address=0x7F55_0000_0000, address_policy="firstfit")
        with pytest.MonkeyPatch.context() as patch:
            # The driver keeps some memory for itself and reports less free memory.
            patch.setattr(Device, "free", property(lambda d: d.total - CONTEXT - d.used - 6 * MIB))
            answer = super().run(moved)
        return replace(answer, conditions={**self.conditions, "driver_trace": answer.trace})


@pytest.mark.parametrize("version", ["2.1", "2.6", "2.11", "2.12", "2.15"])
def test_model_predicts_all_but_the_drivers_decisions(version: str) -> None:
    n_ooms = 0
    for seed in range(12):
        script = on_gpu(make_script(seed, RELEASES[version]), RELEASES[version], 24 * GIB)
        verdict = judge(RealGpu(version), script)
        assert verdict.divergence is None, verdict.divergence.as_test()
        n_ooms += verdict.addresses.count(None)
    assert n_ooms > 20


def test_wrong_model_is_found_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*MISTAKE)
    found = judge(RealGpu("2.15"), Script([["a", 1, 10 * MIB, 0]], 24 * GIB)).divergence
    assert found is not None
    base = 0x7F55_0000_0000
    assert (found.difference.ours, found.difference.expected) == (
        ["segment_alloc", base, 20 * MIB, 0],
        ["segment_alloc", base, 10 * MIB, 0],
    )
    namespace: dict[str, Any] = {}
    exec(found.as_test(), namespace)  # noqa: S102
    with pytest.raises(AssertionError):
        namespace["test_a_divergence_from_2_15"]()


def test_on_gpu_adapts_a_script() -> None:
    ops: list[Op] = [["a", 1, 512, 0], ["r", 1, 1], ["f", 1], ["m", 0.5]]
    script = on_gpu(Script(ops, 6 * GIB), RELEASES["2.15"], 24 * GIB)
    assert script.device_memory == 24 * GIB
    assert script.ops == [["m", 0.25], *ops[:3], ["S"], ["m", 0.125]]


def test_concurrent_scripts_share_half_of_a_card() -> None:
    large = Script([["m", 0.5]], 48 * GIB, "per_process_memory_fraction:0.4")
    for jobs, share in ((1, 0.5), (4, 0.125)):
        script = on_gpu(large, RELEASES["2.15"], 24 * GIB, jobs)
        assert script.ops == [["m", share], ["m", share / 2]]
        assert script.conf == f"per_process_memory_fraction:{0.4 * share:.6f}"


def test_on_gpu_allows_refused_handles_only_at_the_start() -> None:
    conf = "expandable_segments:True,large_segment_size_mb:11"
    ops: list[Op] = [["c", "large_segment_size_mb:13"], ["c", "large_segment_size_mb:20"]]
    script = on_gpu(Script(ops, 6 * GIB, conf), RELEASES["2.15"], 24 * GIB)
    assert script.conf == conf
    assert script.ops[1:] == [["c", "large_segment_size_mb:14"], ["c", "large_segment_size_mb:20"]]


def test_on_gpu_script_has_either_scopes_or_record_stream() -> None:
    ops: list[Op] = [["a", 1, 512, 0], ["r", 1, 1], ["P", "b", 1]]
    for version, kept in (("2.12", 0), ("2.13", 1)):
        script = on_gpu(Script(ops, GIB), RELEASES[version], GIB)
        assert [op[0] for op in script.ops].count("r") == kept
