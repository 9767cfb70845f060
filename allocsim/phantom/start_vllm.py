"""Start vLLM's engine as `vllm serve` would, and end once it is ready for requests.

Rule: this file runs in the interpreter that has vLLM, by its path, so it imports only the standard
library, and modules of vLLM by name.  Arguments: the folder of the model's config.json, then the
arguments of `vllm serve`.

Weights have no values, the tokenizer is not loaded, and the network is not used.  The engine runs
in this process, with its own worker processes if several GPUs are used.  The API server, which uses
no GPU, is not started.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

CONFIGURED = "allocsim: the engine has accepted its arguments"
READY = "allocsim: the engine is ready"

_PLACES = {
    "make_arg_parser": ("vllm.entrypoints.common.cli_args", "vllm.entrypoints.openai.cli_args"),
    "FlexibleArgumentParser": ("vllm.utils.argparse_utils", "vllm.utils"),
    "AsyncEngineArgs": ("vllm.engine.arg_utils",),
    "UsageContext": ("vllm.usage.usage_lib",),
    "EngineCore": ("vllm.v1.engine.core",),
    "Executor": ("vllm.v1.executor", "vllm.v1.executor.abstract"),
}
"""Modules that have each name, those of the newest release of vLLM first."""


def _find(name: str) -> Any:
    for module in _PLACES[name]:
        try:
            return getattr(import_module(module), name)
        except (ImportError, AttributeError):
            continue
    raise ImportError(f"this vLLM has no {name}; expected vLLM 0.10 to 0.33")


def _name_architecture(folder: Path) -> None:
    """Add the class of the model, if it is missing, to the config.json in `folder`."""
    place = folder / "config.json"
    config = json.loads(place.read_text())
    if config.get("architectures"):
        return
    names = import_module("transformers.models.auto.modeling_auto")
    for mapping in ("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "MODEL_MAPPING_NAMES"):
        name = getattr(names, mapping).get(config["model_type"])
        if name is not None:
            config["architectures"] = [name if isinstance(name, str) else name[0]]
            place.write_text(json.dumps(config))
            return


def main(folder: str, words: list[str]) -> None:
    for name in ("VLLM_NO_USAGE_STATS", "DO_NOT_TRACK", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        os.environ[name] = "1"
    _name_architecture(Path(folder))
    parser = _find("make_arg_parser")(_find("FlexibleArgumentParser")())
    fixed = ["--model", folder, "--load-format", "dummy", "--skip-tokenizer-init"]
    engine_arguments = _find("AsyncEngineArgs").from_cli_args(parser.parse_args([*fixed, *words]))
    config = engine_arguments.create_engine_config(
        usage_context=_find("UsageContext").OPENAI_API_SERVER
    )
    print(CONFIGURED, flush=True)
    engine = _find("EngineCore")(config, _find("Executor").get_class(config), log_stats=False)
    print(READY, flush=True)
    engine.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
