"""Start vLLM's engine as `vllm serve` would, serve some prompts if wanted, and end.

This file is run as a script, by an interpreter that has vLLM.  Arguments: the folder of the model's
config.json; the prompts to serve as "number,tokens of each prompt,tokens to generate", such as
"2,1024,64", or "" for none; then the arguments of `vllm serve`.

Weights are allocated, but have no values.  The API server is not started, because it uses no GPU.
With tensor parallelism, all GPUs allocate the same, so only the first rank is started.  The script
prints the memory in use on the GPU after each stage.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import inspect
import json
import os
import sys
from collections.abc import Iterator
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
    "UniProcExecutor": ("vllm.v1.executor.uniproc_executor",),
    "SamplingParams": ("vllm",),
    "Request": ("vllm.v1.request",),
    "MessageQueue": ("vllm.distributed.device_communicators.shm_broadcast",),
}
"""Modules of vLLM that define each imported name; the module of the newest vLLM is first."""


def _find(name: str) -> Any:
    reason = ""
    for module in _PLACES[name]:
        try:
            return getattr(import_module(module), name)
        except (ImportError, AttributeError) as error:
            reason = " ".join(str(error).split())
    raise ImportError(f"this vLLM has no {name}; expected vLLM 0.10 to 0.33: {reason}")


def name_architecture(folder: Path) -> None:
    place = folder / "config.json"
    config = json.loads(place.read_text())
    if config.get("architectures"):
        return
    names = import_module("transformers.models.auto.modeling_auto")
    for mapping in ("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "MODEL_MAPPING_NAMES"):
        name = getattr(names, mapping).get(config["model_type"])
        if name is not None:
            config["architectures"] = [name if isinstance(name, str) else name[0]]
            named = place.with_suffix(f".{os.getpid()}")
            named.write_text(json.dumps(config))
            named.replace(place)  # atomically, because another process may read the file
            return


def _bytes(name: str) -> int:
    ask = getattr(ctypes.CDLL(None), f"device_{name}")
    ask.restype = ctypes.c_size_t
    return int(ask())


def card_in_use() -> int:
    return _bytes("capacity") - _bytes("free_bytes")


def print_memory(stage: str, peak: int | None = None) -> None:
    used = card_in_use()
    most = _bytes("peak_bytes") if peak is None else peak
    print(f"allocsim: after {stage}: {used} bytes in use, {most} at the peak", flush=True)


def run_steps(each: Iterator[object], most: int) -> None:
    """Run an engine until it has answered its prompts, then print the GPU's memory in use.

    each: iterator that runs one step of the engine when its next item is taken.
    most: largest number of steps.

    Raises RuntimeError if some prompts are not answered after `most` steps.
    """
    peak = card_in_use()
    for number, _ in enumerate(each):
        peak = max(peak, card_in_use())
        if number > most:
            raise RuntimeError(f"the requests did not end after {most} steps")
    print_memory("requests", peak)


def _play(engine: Any, requests: int, prompt: int, decode: int) -> None:
    # The prompts differ, so that the engine shares no part of them.
    params = _find("SamplingParams")(max_tokens=decode, ignore_eos=True, detokenize=False)
    kind = _find("Request")
    taken = inspect.signature(kind).parameters
    for number in range(requests):
        fields = {
            "request_id": str(number),
            "prompt_token_ids": [number] * prompt,
            "sampling_params": params,
            "pooling_params": None,
            "eos_token_id": None,
            "block_hasher": engine.request_block_hasher,
        }
        engine.add_request(kind(**{name: fields[name] for name in fields if name in taken}))

    def each() -> Iterator[object]:
        while engine.scheduler.has_requests() or engine.batch_queue:
            yield engine.step_fn()

    run_steps(each(), requests * (prompt + decode))


def leave_out_other_ranks(queue: Any, package: str) -> None:
    """Patch torch.distributed so that the first rank runs without the other ranks.

    queue: class of an engine's queues between ranks.
    package: prefix of the names of the engine's modules.
    """
    dist: Any = import_module("torch.distributed")
    store = import_module("torch.testing._internal.distributed.fake_pg").FakeStore
    begin, divide, send = dist.init_process_group, dist.new_group, dist.broadcast_object_list
    sent: list[Any] = []

    def begin_alone(*_: Any, world_size: int, rank: int, **__: Any) -> None:
        begin("fake", store=store(), world_size=world_size, rank=rank)

    def broadcast(objects: list[Any], src: int | None = None, *more: Any, **named: Any) -> None:
        if src == dist.get_rank():
            sent[:] = objects
            send(objects, src, *more, **named)
        objects[:] = sent

    def gather(found: list[Any], own: Any, *_: Any, **__: Any) -> None:
        found[:] = [own] * len(found)

    dist.init_process_group, dist.broadcast_object_list = begin_alone, broadcast
    dist.new_group = lambda ranks=None, *_, **__: divide(ranks, backend="fake")
    dist.all_gather_object = gather
    dist.monitored_barrier = lambda *_, **__: None
    queue.create_from_process_group = lambda *_, **__: None
    for module in [each for name, each in sys.modules.items() if name.startswith(package)]:
        if "in_the_same_node_as" in vars(module):
            vars(module)["in_the_same_node_as"] = lambda group, *_, **__: [True] * group.size()


def end() -> None:
    """End the process without freeing its objects, which takes several seconds."""
    atexit._run_exitfuncs()  # writes the recording
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def main(folder: str, requests: str, words: list[str]) -> None:
    gc.disable()  # imports make many objects and little garbage
    for name in ("VLLM_NO_USAGE_STATS", "DO_NOT_TRACK", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        os.environ[name] = "1"
    name_architecture(Path(folder))
    parser = _find("make_arg_parser")(_find("FlexibleArgumentParser")())
    fixed = ["--model", folder, "--load-format", "dummy"]
    if not (Path(folder) / "tokenizer_config.json").exists():
        fixed.append("--skip-tokenizer-init")
    # The engine describes the model's class in another process, which takes ten seconds.
    registry: Any = import_module("vllm.model_executor.models.registry")
    registry._run_in_subprocess = lambda describe: describe()
    engine_arguments = _find("AsyncEngineArgs").from_cli_args(parser.parse_args([*fixed, *words]))
    config = engine_arguments.create_engine_config(
        usage_context=_find("UsageContext").OPENAI_API_SERVER
    )
    print(CONFIGURED, flush=True)
    executor = _find("Executor").get_class(config)
    parallel = config.parallel_config
    if 1 < parallel.world_size == parallel.tensor_parallel_size:
        executor = _find("UniProcExecutor")
        leave_out_other_ranks(_find("MessageQueue"), "vllm.")
    core = _find("EngineCore")
    gc.freeze()  # later collections skip the imported objects
    gc.enable()
    engine = core(config, executor, log_stats=False)
    print(READY, flush=True)
    print_memory("start")
    if requests:
        _play(engine, *map(int, requests.split(",")))
    if config.model_config.enable_sleep_mode:
        for level in (1, 2):
            engine.sleep(level)
            print_memory(f"sleep at level {level}")
            engine.wake_up()
    end()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
