"""Infer from a stack the training phase and the kind of code that requested memory.

The innermost frame that belongs to a known file or function of PyTorch or its libraries decides.  A
stack without such a frame belongs to the user's own code.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise

from allocsim.recording import Frame, FrameTable


class Phase(IntEnum):
    """Training phase, or other part of the program, that requested a block.

    UNTOLD is for an unknown stack, SETUP for the construction of the model, and PROGRAM for the
    user's code outside model and optimizer.
    """

    UNTOLD = 0
    SETUP = 1
    PROGRAM = 2
    FORWARD = 3
    BACKWARD = 4
    OPTIMIZER = 5

    @property
    def text(self) -> str:
        return _PHASE_TEXTS[self]


_PHASE_TEXTS = {
    Phase.UNTOLD: "code that is not recorded",
    Phase.SETUP: "setting up",
    Phase.PROGRAM: "the program's own code",
    Phase.FORWARD: "forward",
    Phase.BACKWARD: "backward",
    Phase.OPTIMIZER: "optimizer",
}


class Origin(IntEnum):
    """Kind of code that requested a block, and often the purpose of the block.

    Members TOLD_… are for blocks whose category PyTorch's profiler has recorded.
    """

    OTHER = 0
    ENGINE = 1  # autograd's engine itself
    LAYER = 2  # the __init__ of one of PyTorch's layers: a parameter
    LAYER_STATISTICS = 3  # the __init__ of one of PyTorch's norms: running statistics
    CONVERTED = 4  # module.to() or similar: a parameter
    CONVERTED_REST = 5  # module.to() or similar: a buffer
    OWN_LAYER = 6  # the __init__ of a module of the user's program
    SHARDED = 7  # a shard of a parameter, or a buffer of many parameters
    COPIED = 8  # a copy of a parameter by copy.deepcopy
    LOADED = 9  # read from a checkpoint into a module
    FILLED = 10  # initialisation of values: a temporary block
    CACHE = 11  # code with the name of a key-value cache
    EXCHANGE = 12  # communication with other ranks
    SCALER = 13  # the gradient scaler
    STATE = 14  # creation of optimizer state
    GRADIENT_BUFFER = 15  # one buffer for the gradients of many parameters
    NODE = 16  # the backward of an autograd.Function, or compiled code in its place
    TOLD_PARAMETER = 17  # this and the following: category in the profiler's memory timeline
    TOLD_OPTIMIZER = 18
    TOLD_INPUT = 19
    TOLD_TEMPORARY = 20
    TOLD_ACTIVATION = 21
    TOLD_GRADIENT = 22


_STAND_INS = ("<before>", "<timeline>", "<rows>")
"""File names in frames that allocsim adds to recordings that have only requests and frees."""

_BY_PROFILER = {
    "parameter": Origin.TOLD_PARAMETER,
    "optimizer state": Origin.TOLD_OPTIMIZER,
    "input": Origin.TOLD_INPUT,
    "temporary": Origin.TOLD_TEMPORARY,
    "activation": Origin.TOLD_ACTIVATION,
    "gradient": Origin.TOLD_GRADIENT,
}


@dataclass(frozen=True, slots=True)
class StackKind:
    """Training phase and kind of code, as inferred from one stack.

    is_engine_thread: True if autograd's thread ran the Python code, for recomputation or a hook.
    is_without_grad: True if the model was called under no_grad or inference_mode.
    """

    phase: Phase
    origin: Origin = Origin.OTHER
    is_engine_thread: bool = False
    is_without_grad: bool = False


_ROOTS = {"<module>", "_run_module_as_main", "_run_code", "_bootstrap", "_bootstrap_inner"}
"""Outermost functions in stacks of Python threads; stacks of autograd's threads lack them."""

_CALLS = {"_call_impl", "_wrapped_call_impl"}
_LAYER_FILES = {
    *("linear.py", "conv.py", "sparse.py", "batchnorm.py", "normalization.py", "activation.py"),
    *("rnn.py", "instancenorm.py", "transformer.py", "adaptive.py"),
}
_NORM_FILES = {"batchnorm.py", "instancenorm.py"}
_FLAT_BUFFERS = "param_and_grad_buffer.py"
"""File of Megatron with a constructor that allocates a parameter buffer, then a gradient buffer."""
_OPTIMIZER_FILES = {
    *("adam.py", "adamw.py", "sgd.py", "adagrad.py", "adadelta.py", "adamax.py", "asgd.py"),
    *("nadam.py", "radam.py", "rmsprop.py", "rprop.py", "lbfgs.py", "sparse_adam.py"),
    *("_adafactor.py", "_muon.py", "optimizer.py", "zero_redundancy_optimizer.py"),
}
_BACKWARD = {
    ("_tensor.py", "backward"),
    ("__init__.py", "backward"),
    ("__init__.py", "_make_grads"),
    ("__init__.py", "grad"),
    ("graph.py", "_engine_run_backward"),
}
_LOADS = re.compile(
    r"load_state_dict|_load_from_state_dict|from_pretrained|load_weights|load_model|get_model|"
    r"build_model|_load_pretrained_model|set_module_tensor_to_device|^init_(all_)?weights?(_list)?$"
)
_CACHE = re.compile(
    r"kv_?cache|cache_utils|cache_engine|(static|paged|init|allocate)_?cache|past_key_values",
    re.IGNORECASE,
)
_FILLS = re.compile(r"_?(reset|init|initialize)_\w+|_no_grad_\w+|trunc_normal_|orthogonal_")
_STATE_MAKERS = {"_init_group", "init_state", "_init_state", "load_state_dict"}
_PASSED = {"_device.py", "_contextlib.py", "functional.py", "_decorators.py"}
"""Files of PyTorch between a constructor and the request in a stack; `_constructor` skips them."""
_ENGINE = re.compile(r"torch::autograd::(python::Python)?Engine::|torch::autograd::Node::")


def file_name_of(frame: Frame) -> str:
    return frame.filename.replace("\\", "/").rpartition("/")[2]


def is_python(frame: Frame) -> bool:
    return frame.filename.endswith(".py") or frame.filename.startswith("<")


def is_call(frame: Frame) -> bool:
    """Return True if a frame is a function of PyTorch that calls a module's forward."""
    return frame.name in _CALLS or (frame.name == "inner" and file_name_of(frame) == "module.py")


def kinds_of(table: FrameTable, stacks: Sequence[int]) -> dict[int, StackKind]:
    """Return a dictionary from each stack index to the training phase and kind of code.

    Pass all stacks of the recording at once: one stack can show that a file defines modules, and
    this affects other stacks with that file.

    stacks: indices of stacks in `table`; -1 for requests without a stack.
    """
    known = {stack: table.stack(stack) for stack in stacks}
    python = {
        stack: tuple(frame for frame in frames if is_python(frame))
        for stack, frames in known.items()
    }
    facts = _Facts(list(python.values()))
    return {
        stack: facts.kind(frames, python[stack]) if stack >= 0 else StackKind(Phase.UNTOLD)
        for stack, frames in known.items()
    }


class _Facts:
    def __init__(self, stacks: Sequence[tuple[Frame, ...]]) -> None:
        self.has_roots = any(stack and _is_root(stack) for stack in stacks)
        self.module_files = _module_files(stacks)
        self.converting = _lines(f for f in map(_converting_frame, stacks) if f is not None)
        constructors = [frame for frame in map(_constructor, stacks) if frame is not None]
        self.norms = _lines(frame for frame in constructors if file_name_of(frame) in _NORM_FILES)
        self.flat = _lines(frame for frame in constructors if file_name_of(frame) == _FLAT_BUFFERS)

    def kind(self, frames: Sequence[Frame], python: tuple[Frame, ...]) -> StackKind:
        if not python:
            at_work = any(_ENGINE.search(frame.name) for frame in frames)
            phase = Phase.BACKWARD if at_work else Phase.UNTOLD
            return StackKind(phase, Origin.ENGINE if at_work else Origin.OTHER)
        if python[0].filename in _STAND_INS:
            category = python[0].name if python[0].filename == "<timeline>" else ""
            return StackKind(Phase.UNTOLD, _BY_PROFILER.get(category, Origin.OTHER))
        is_engine_thread = self.has_roots and not _is_root(python)
        origin = _origin_by_name(python)
        phase = Phase.BACKWARD if is_engine_thread else _phase(python)
        if is_engine_thread and origin is Origin.OTHER and _is_node(python[-1]):
            origin = Origin.NODE
        if phase is Phase.BACKWARD and python[0].name == "_engine_run_backward":
            return StackKind(phase, Origin.ENGINE)
        if phase is Phase.OPTIMIZER:
            makes_state = any(frame.name in _STATE_MAKERS for frame in python)
            return StackKind(phase, Origin.STATE if makes_state else Origin.OTHER)
        if phase is Phase.PROGRAM and origin is Origin.OTHER:
            origin = self._made_by(python)
            if origin is not Origin.OTHER:
                return StackKind(Phase.SETUP, origin)
            if any(frame.name == "__init__" for frame in python):
                phase = Phase.SETUP if self._is_module(python) else phase
        is_without_grad = phase is Phase.FORWARD and _is_without_grad(python)
        return StackKind(phase, origin, is_engine_thread, is_without_grad)

    def _made_by(self, python: tuple[Frame, ...]) -> Origin:
        names = {frame.name for frame in python}
        if "_init_sharded_param" in names:
            return Origin.SHARDED
        if "__deepcopy__" in names:
            return Origin.COPIED
        converting = _converting_frame(python)
        if converting is not None:
            is_first = converting.line == self.converting[converting.filename][0]
            return Origin.CONVERTED if is_first else Origin.CONVERTED_REST
        constructor = _constructor(python)
        if constructor is not None:
            return self._constructed(constructor)
        fills = any(_FILLS.fullmatch(frame.name) for frame in python[:3])
        if fills and self._is_module(python):
            return Origin.FILLED
        return Origin.LOADED if any(_LOADS.search(name) for name in names) else Origin.OTHER

    def _constructed(self, constructor: Frame) -> Origin:
        # A norm allocates weight and bias first, then its running statistics on three later lines.
        if file_name_of(constructor) == _FLAT_BUFFERS:
            is_first = constructor.line == self.flat[constructor.filename][0]
            return Origin.SHARDED if is_first else Origin.GRADIENT_BUFFER
        if is_layer(constructor):
            lines = self.norms.get(constructor.filename, [])
            is_late = len(lines) >= 3 and constructor.line in lines[-3:]
            return Origin.LAYER_STATISTICS if is_late else Origin.LAYER
        is_own = constructor.filename in self.module_files
        return Origin.OWN_LAYER if is_own else Origin.OTHER

    def _is_module(self, python: tuple[Frame, ...]) -> bool:
        made = (frame for frame in python if frame.name == "__init__")
        return any(is_layer(frame) or frame.filename in self.module_files for frame in made)


def _is_root(python: tuple[Frame, ...]) -> bool:
    return python[-1].name in _ROOTS


def _is_without_grad(python: tuple[Frame, ...]) -> bool:
    # A no_grad decorator counts only outside all module calls.  Inside a module, a function under
    # no_grad may still create tensors that the backward pass needs.
    for frame in reversed(python):
        if is_call(frame):
            break
        if file_name_of(frame) == "_contextlib.py":
            return True
    return False


def _is_node(outermost: Frame) -> bool:
    return outermost.name.startswith("apply") and file_name_of(outermost) == "function.py"


def _phase(python: tuple[Frame, ...]) -> Phase:
    for frame in python:
        if is_call(frame):
            return Phase.FORWARD
        stem = file_name_of(frame)
        if (stem, frame.name) in _BACKWARD:
            return Phase.BACKWARD
        if _is_optimizer(frame, stem):
            return Phase.OPTIMIZER
        if frame.name in ("closure", "<module>"):
            break
    return Phase.PROGRAM


def _is_optimizer(frame: Frame, stem: str) -> bool:
    if frame.name in ("__init__", "zero_grad"):
        return False
    if "/torch/optim/" in frame.filename.replace("\\", "/"):
        return stem not in ("lr_scheduler.py", "swa_utils.py")
    return stem in _OPTIMIZER_FILES or (frame.name == "step" and "optim" in frame.filename)


def _origin_by_name(python: tuple[Frame, ...]) -> Origin:
    if any(_CACHE.search(frame.name) or _CACHE.search(file_name_of(frame)) for frame in python):
        return Origin.CACHE
    names = {frame.name for frame in python}
    if "_init_sharded_param" in names:
        return Origin.OTHER
    for frame in python:
        stem, path = file_name_of(frame), frame.filename.replace("\\", "/")
        if stem.startswith("_fsdp_") or "/torch/distributed/" in path or stem == "distributed.py":
            return Origin.EXCHANGE
        if is_call(frame):
            break
        if stem == "grad_scaler.py":
            return Origin.SCALER
    return Origin.OTHER


def is_layer(frame: Frame) -> bool:
    path = frame.filename.replace("\\", "/")
    if "/" in path:
        return "/torch/nn/modules/" in path
    return path in _LAYER_FILES


def _constructor(python: tuple[Frame, ...]) -> Frame | None:
    for frame in python:
        if file_name_of(frame) not in _PASSED:
            return frame if frame.name == "__init__" else None
    return None


def _converting_frame(python: tuple[Frame, ...]) -> Frame | None:
    for frame in python:
        if is_call(frame):
            return None
        if frame.name == "_apply" and file_name_of(frame) == "module.py":
            return frame
    return None


def _lines(frames: Iterable[Frame]) -> dict[str, list[int]]:
    found: dict[str, set[int]] = {}
    for frame in frames:
        found.setdefault(frame.filename, set()).add(frame.line)
    return {name: sorted(lines) for name, lines in found.items()}


def _module_files(stacks: Sequence[tuple[Frame, ...]]) -> set[str]:
    found = set()
    for stack in stacks:
        for inner, outer in pairwise(stack):
            builds = outer.name == inner.name == "__init__" and is_layer(inner)
            if (is_call(outer) and not is_call(inner)) or (builds and not is_layer(outer)):
                found.add(outer.filename if builds else inner.filename)
    return found
