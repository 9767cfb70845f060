"""Names of owners: parts of the model, lines, and the forward code of a backward."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from allocsim import load, top
from allocsim.ownership.stacks import Origin, Phase, kinds_of
from allocsim.ownership.whose import module_name
from allocsim.recording import Frame, FrameInterner

TRACES = Path(__file__).parents[2] / "traces"
LLAMA = TRACES / "recordings" / "llama_checkpointing-default-torch2.15.npz.gz"


def called(*frames: tuple[str, int, str]) -> list[Frame]:
    """Return a stack of module calls, with the program's line last."""
    stack = []
    for filename, line, name in frames:
        stack.append(Frame(filename, name, line))
        stack.append(Frame("torch/nn/modules/module.py", "_call_impl", 1798))
        stack.append(Frame("torch/nn/modules/module.py", "_wrapped_call_impl", 1787))
    return [*stack, Frame("train.py", "<module>", 12)]


def test_a_part_of_the_model_is_the_row_of_its_modules() -> None:
    stack = called(
        ("/env/site-packages/torch/nn/modules/linear.py", 134, "forward"),
        ("/env/site-packages/transformers/models/qwen2/modeling_qwen2.py", 46, "forward"),
        ("/env/site-packages/transformers/models/qwen2/modeling_qwen2.py", 221, "forward"),
    )
    assert module_name(stack, 2) == "linear.forward < modeling_qwen2.forward:46"
    assert module_name(stack, 3).endswith("< modeling_qwen2.forward:221")


@pytest.mark.parametrize(
    "name", ["wrapped_func", "deprecate_kwarg.<locals>.wrapper.<locals>.wrapped_func"]
)
def test_decorator_of_a_forward_is_no_module(name: str) -> None:
    """Transformers 5.24 wraps the forward of models, layers and attention."""
    modeling = "/env/site-packages/transformers/models/llama/modeling_llama.py"
    renamed = Frame("/env/site-packages/transformers/utils/deprecation.py", name, 173)
    call = Frame("torch/nn/modules/module.py", "_call_impl", 1798)
    stack = [
        *(Frame(modeling, "forward", 245), renamed, call),
        *(Frame(modeling, "forward", 300), renamed),
        Frame(
            "/env/site-packages/transformers/modeling_layers.py", "forward_with_checkpointing", 8
        ),
        *(call, Frame("train.py", "<module>", 12)),
    ]
    assert module_name(stack, 3) == "modeling_llama.forward:245 < modeling_llama.forward:300"


def test_a_layer_that_is_recomputed_is_named_without_a_call() -> None:
    stack = [
        Frame("modeling_llama.py", "forward", 300),
        Frame("torch/utils/checkpoint.py", "recompute_fn", 1135),
        Frame("torch/utils/checkpoint.py", "unpack_hook", 1189),
    ]
    assert module_name(stack, 3) == "modeling_llama.forward:300"


def test_qualified_names_are_taken_where_the_release_has_them() -> None:
    stack = called(("modeling_qwen2.py", 46, "Qwen2MLP.forward"), ("m.py", 2, "Qwen2Layer.forward"))
    assert module_name(stack, 3) == "Qwen2MLP.forward < Qwen2Layer.forward"


def test_the_line_that_calls_the_model_is_never_the_whole_answer() -> None:
    result = top(load(LLAMA), by="module")
    assert not any(row.owner.startswith("llama_checkpointing.main") for row in result.rows[:10])
    assert "linear.__init__ < modeling_llama.__init__:420" in " ".join(r.owner for r in result.rows)


def test_memory_of_autograds_thread_is_given_to_the_forward_it_belongs_to() -> None:
    result = top(load(LLAMA), by="line")
    silent = [row for row in result.rows if row.owner.startswith("backward (autograd)")]
    assert [row.category for row in silent[:2]] == ["temporaries", "temporaries"]
    assert silent[0].owner == "backward (autograd) of loss_utils.py:42 fixed_cross_entropy"
    assert silent[1].owner == "backward (autograd) of loss_utils.py:66 ForCausalLMLoss"


def test_engine_in_cpp_frames_alone_means_backward() -> None:
    table = FrameInterner()
    number = table.stack(
        table.frame(Frame(filename, name, 0))
        for filename, name in (
            ("??", "torch::unwind::unwind()"),
            (":0", "torch::autograd::Engine::evaluate_function(...)"),
            ("clone3.S", "__clone3"),
        )
    )
    kind = kinds_of(table.table(), [number])[number]
    assert (kind.phase, kind.origin) == (Phase.BACKWARD, Origin.ENGINE)


def test_the_optimizer_inside_a_closure_is_told_from_the_forward_in_it() -> None:
    table = FrameInterner()
    optimizer = [Frame("torch/optim/adam.py", "step", 239), Frame("o.py", "wrapper", 567)]
    outside = [Frame("train.py", "closure", 20), *optimizer, Frame("train.py", "<module>", 30)]
    stacks = {
        Phase.FORWARD: [Frame("net.py", "forward", 5), Frame("m.py", "_call_impl", 1), *outside],
        Phase.OPTIMIZER: [*optimizer, Frame("train.py", "<module>", 30)],
        Phase.PROGRAM: outside,
        Phase.BACKWARD: [Frame("torch/_tensor.py", "backward", 623), *outside],
    }
    numbers = {
        phase: table.stack([table.frame(frame) for frame in frames])
        for phase, frames in stacks.items()
    }
    kinds = kinds_of(table.table(), list(numbers.values()))
    assert {phase: kinds[number].phase for phase, number in numbers.items()} == {
        phase: phase for phase in numbers
    }


def test_moments_have_the_number_of_the_step_and_its_phase() -> None:
    recording = load(LLAMA)
    trace = recording.devices[0]
    steps = [top(recording, at).at.step for at in np.linspace(2000, len(trace) - 50, 4).astype(int)]
    assert steps == sorted(steps) and steps[-1] == 3
    assert top(recording, "peak").at.phase == "backward"
