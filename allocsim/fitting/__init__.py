"""Predictions of `allocsim fit`: whether a model's training or serving fits on a GPU.

Submodules are imported on first use.  A quick estimate then loads neither the code for replays nor
the laws (formulas for every allocator request of a program).
"""

from typing import TYPE_CHECKING

from allocsim._lazy import lazily

if TYPE_CHECKING:
    from allocsim.fitting.advice import Advice, Change, advise, fewest_checkpointed
    from allocsim.fitting.by_engine import fit, fit_cards, fit_command
    from allocsim.fitting.by_formula import Estimate, estimate
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
    from allocsim.fitting.fit_result import Fit
    from allocsim.fitting.from_config import WARNING, ReadConfig, read_config
    from allocsim.fitting.model import Configured, model_of, most_positions
    from allocsim.fitting.notes import (
        BY_LAW,
        CONVOLUTIONS_NOTE,
        CUDNN_ATTENTION,
        CUDNN_NOTE,
        EXPERTS_NOTE,
        MASK_NOTE,
    )
    from allocsim.fitting.parallel import (
        RESERVED_SEEN,
        GpuCount,
        Planned,
        Sharded,
        find_layouts,
        precision_of,
        shard,
    )
    from allocsim.fitting.presets import CONFIGURATIONS, GENERATORS, TORCHVISION
    from allocsim.fitting.program import program_of
    from allocsim.fitting.published import unused_words
    from allocsim.fitting.run_result import Ran, run_program
    from allocsim.fitting.search import (
        SIZES,
        Fewest,
        Frontier,
        Largest,
        TriedSize,
        fewest,
        frontier,
        largest,
    )
    from allocsim.fitting.serving import Served, held_of, serve
    from allocsim.fitting.serving_program import Phase, Started, start, start_largest
    from allocsim.fitting.task import (
        ATTENTION,
        DTYPES,
        EAGER_NOTE,
        GENERATOR_QUANTS,
        OPTIMIZERS,
        PARALLEL,
        STARTS,
        Task,
        lengths_of,
        usual_attention,
        usual_lengths,
        usual_values,
    )
    from allocsim.fitting.training_input import shape_of

__all__ = [
    "ATTENTION", "Advice", "BY_LAW", "CONFIGURATIONS", "CONVOLUTIONS_NOTE", "CUDNN_ATTENTION",
    "CUDNN_NOTE", "Change", "Configured", "DTYPES", "EAGER_NOTE", "EXPERTS_NOTE", "Estimate",
    "Fewest", "Fit", "Frontier", "GENERATORS", "GENERATOR_QUANTS", "GpuCount", "Largest",
    "LawModel", "MASK_NOTE", "OPTIMIZERS", "Opening", "PARALLEL", "PageLaws", "Phase", "Planned",
    "RESERVED_SEEN", "Ran", "ReadConfig", "SIZES", "STARTS", "Served", "Sharded", "Started",
    "TORCHVISION", "Task", "TriedSize", "WARNING", "advise", "estimate", "fewest",
    "fewest_checkpointed", "find_layouts", "fit", "fit_cards", "fit_command", "frontier", "held_of",
    "largest", "law_cards", "law_families", "law_models", "law_programs", "lengths_of", "model_of",
    "most_positions", "opening_at", "page_laws", "precision_of", "program_of", "read_config",
    "run_by_law", "run_program", "serve", "shape_of", "shard", "start", "start_largest",
    "unused_words", "usual_attention", "usual_lengths", "usual_values",
]  # fmt: skip

_HOMES = {
    "advice": "Advice Change advise fewest_checkpointed",
    "by_law": "run_by_law",
    "calculator": "LawModel Opening PageLaws law_cards law_families law_models law_programs "
    "opening_at page_laws",
    "by_formula": "Estimate estimate",
    "by_engine": "fit fit_cards fit_command",
    "fit_result": "Fit",
    "from_config": "ReadConfig WARNING read_config",
    "search": "SIZES Fewest Frontier Largest TriedSize fewest frontier largest",
    "model": "Configured model_of most_positions",
    "notes": "BY_LAW CONVOLUTIONS_NOTE CUDNN_ATTENTION CUDNN_NOTE EXPERTS_NOTE MASK_NOTE",
    "parallel": "RESERVED_SEEN GpuCount Planned Sharded find_layouts precision_of shard",
    "presets": "CONFIGURATIONS GENERATORS TORCHVISION",
    "program": "program_of",
    "published": "unused_words",
    "run_result": "Ran run_program",
    "serving": "Served held_of serve",
    "serving_program": "Phase Started start start_largest",
    "task": "ATTENTION DTYPES EAGER_NOTE GENERATOR_QUANTS OPTIMIZERS PARALLEL STARTS Task "
    "lengths_of usual_attention usual_lengths usual_values",
    "training_input": "shape_of",
}
"""Dictionary from each submodule to its public names; their first use imports the submodule."""

__getattr__ = lazily(globals(), _HOMES)
