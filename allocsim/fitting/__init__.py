"""The `fit` question: predict whether a model's training or serving fits on a GPU."""

from allocsim.fitting.advice import Advice, Change, advise, stored_in
from allocsim.fitting.by_law import run_by_law
from allocsim.fitting.calculator import (
    LawModel,
    Opening,
    PageLaws,
    law_cards,
    law_families,
    law_models,
    law_programs,
    opening_at,
    page_laws,
)
from allocsim.fitting.estimate import Estimate, estimate
from allocsim.fitting.fit import fit, fit_cards, fit_command
from allocsim.fitting.fit_result import Fit
from allocsim.fitting.from_config import ReadConfig, read_config
from allocsim.fitting.frontier import Frontier, frontier, usual_values
from allocsim.fitting.gpu_count import GpuCount, Planned, plan
from allocsim.fitting.largest import SIZES, Fewest, Largest, TriedSize, fewest, largest
from allocsim.fitting.model import Configured, Model, model_of, most_positions, shape_of
from allocsim.fitting.notes import (
    BY_LAW,
    CONVOLUTIONS_NOTE,
    CUDNN_ATTENTION,
    CUDNN_NOTE,
    EXPERTS_NOTE,
    MASK_NOTE,
)
from allocsim.fitting.parallel import NCCL_SEEN, RESERVED_SEEN, Sharded, precision_of, shard
from allocsim.fitting.presets import CONFIGURATIONS, TORCHVISION
from allocsim.fitting.program import program_of
from allocsim.fitting.run_result import Ran, run_program
from allocsim.fitting.saved_answers import Answered, ReadFront, read_answers, read_frontier
from allocsim.fitting.serving import SERVERS, Served, ServedMemory, held_of, serve
from allocsim.fitting.serving_program import Phase, Started, start, start_largest
from allocsim.fitting.task import (
    ATTENTION,
    DTYPES,
    OPTIMIZERS,
    PARALLEL,
    STARTS,
    Task,
    lengths_of,
    usual_attention,
    usual_lengths,
)

__all__ = [
    "ATTENTION", "Advice", "Answered", "BY_LAW", "CONFIGURATIONS", "CONVOLUTIONS_NOTE",
    "CUDNN_ATTENTION", "CUDNN_NOTE", "Change", "Configured", "DTYPES", "EXPERTS_NOTE", "Estimate",
    "Fewest", "Fit", "Frontier", "GpuCount", "Largest", "LawModel", "MASK_NOTE", "Model",
    "NCCL_SEEN", "OPTIMIZERS", "Opening", "PARALLEL", "PageLaws", "Phase", "Planned",
    "RESERVED_SEEN", "Ran", "ReadConfig", "ReadFront", "SERVERS", "SIZES", "STARTS", "Served",
    "ServedMemory", "Sharded", "Started", "TORCHVISION", "Task", "TriedSize", "advise", "estimate",
    "fewest", "fit", "fit_cards", "fit_command", "frontier", "held_of", "largest", "law_cards",
    "law_families", "law_models", "law_programs", "lengths_of", "model_of", "most_positions",
    "opening_at", "page_laws", "plan", "precision_of", "program_of", "read_answers", "read_config",
    "read_frontier", "run_by_law", "run_program", "serve", "shape_of", "shard", "start",
    "start_largest", "stored_in", "usual_attention", "usual_lengths", "usual_values",
]  # fmt: skip
