"""A script with a background thread differs only if PyTorch never gives the model's answers."""

from __future__ import annotations

from dataclasses import replace

from allocsim.units import GIB
from allocsim.verify import RealAnswer, Script
from allocsim.verify.comparison import judge
from allocsim.verify.player import play_host

OPS = [["a", 1, 512], ["f", 1], ["a", 2, 512]]


class LateTorch:
    """Real PyTorch that answers as the model does from the run number `good` on."""

    torch_version = "2.15.0"

    def __init__(self, good: int) -> None:
        self.good = good
        self.runs = 0

    def run(self, script: Script) -> RealAnswer:
        ours = play_host(script, "2.15")
        answer = RealAnswer(
            "2.15.0", ours.addresses, ours.stats, ours.segments, ours.trace, ours.messages
        )
        self.runs += 1
        return answer if self.runs >= self.good else replace(answer, addresses=[0, 1])


def test_late_background_thread_is_no_divergence() -> None:
    script = Script(OPS, GIB, "pinned_use_background_threads:True", is_host=True)
    assert judge(LateTorch(6), script).divergence is None
    assert judge(LateTorch(7), script).divergence is not None


def test_script_without_background_thread_is_run_once() -> None:
    torch = LateTorch(2)
    assert judge(torch, Script(OPS, GIB, is_host=True)).divergence is not None
    assert torch.runs == 1
