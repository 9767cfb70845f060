"""The `fit` question: predict whether a model's training or serving fits on a GPU."""

from allocsim.fitting.by_law import run_by_law
from allocsim.fitting.calculator import (
    LawModel,
    Opening,
    law_cards,
    law_models,
    law_programs,
    opening_at,
    purposes_of_laws,
)
from allocsim.fitting.fit import Fit, fit, fit_command
from allocsim.fitting.frontier import Frontier, frontier, usual_values
from allocsim.fitting.gpu_count import GpuCount, Planned, plan
from allocsim.fitting.largest import SIZES, Fewest, Largest, TriedSize, fewest, largest
from allocsim.fitting.model import Configured, Model, model_of, most_positions, shape_of
from allocsim.fitting.notes import (
    CONVOLUTIONS_NOTE,
    CUDNN_ATTENTION,
    CUDNN_NOTE,
    EXPERTS_NOTE,
    MASK_NOTE,
)
from allocsim.fitting.parallel import NCCL_SEEN, RESERVED_SEEN, Sharded, precision_of, shard
from allocsim.fitting.presets import CONFIGURATIONS, TORCHVISION
from allocsim.fitting.program import program_of
from allocsim.fitting.run_result import Ran, run_program, run_task
from allocsim.fitting.saved_answers import Answered, ReadFront, read_answers, read_frontier
from allocsim.fitting.serving import SERVERS, Served, ServedMemory, held_of, serve
from allocsim.fitting.serving_program import Phase, Started, start
from allocsim.fitting.task import (
    ATTENTION,
    DTYPES,
    OPTIMIZERS,
    PARALLEL,
    STARTS,
    Task,
    lengths_of,
    usual_lengths,
)

__all__ = [
    "ATTENTION", "Answered", "CONFIGURATIONS", "CONVOLUTIONS_NOTE", "CUDNN_ATTENTION", "CUDNN_NOTE",
    "Configured", "DTYPES", "EXPERTS_NOTE", "Fewest", "Fit", "Frontier", "GpuCount", "Largest",
    "LawModel", "MASK_NOTE", "Model", "NCCL_SEEN", "OPTIMIZERS", "Opening", "PARALLEL", "Phase",
    "Planned", "RESERVED_SEEN", "Ran", "ReadFront", "SERVERS", "SIZES", "STARTS", "Served",
    "ServedMemory", "Sharded", "Started", "TORCHVISION", "Task", "TriedSize", "fewest", "fit",
    "fit_command", "frontier", "held_of", "largest", "law_cards", "law_models", "law_programs",
    "lengths_of", "model_of", "most_positions", "opening_at", "plan", "precision_of", "program_of",
    "purposes_of_laws", "read_answers", "read_frontier", "run_by_law", "run_program", "run_task",
    "serve", "shape_of", "shard", "start", "usual_lengths", "usual_values",
]  # fmt: skip
