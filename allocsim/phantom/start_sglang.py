"""Start SGLang's scheduler as `sglang.launch_server` would, and end when it is ready for prompts.

This file is run as a script, by an interpreter that has SGLang.  Weights are allocated, but
have no values.  The server and the detokenizer are not started, because they use no GPU.  With
tensor parallelism, all GPUs allocate the same, so only the first rank is started.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
from array import array
from importlib import import_module
from pathlib import Path
from typing import Any

_SHARED: Any = import_module("start_vllm")


def _play(scheduler: Any, requests: int, prompt: int, decode: int) -> None:
    # The prompts differ, so that the scheduler shares no part of them.
    types = import_module("sglang.srt.managers.io_struct")
    sampling = import_module("sglang.srt.sampling.sampling_params").SamplingParams
    waiting: list[Any] = []
    for number in range(requests):
        params = sampling(max_new_tokens=decode, ignore_eos=True)
        params.normalize(None)
        request = types.TokenizedGenerateReqInput(
            rid=str(number),
            input_text=None,
            input_ids=array("q", [number] * prompt),
            input_embeds=None,
            mm_inputs=None,
            token_type_ids=None,
            sampling_params=params,
            return_logprob=False,
            logprob_start_len=-1,
            top_logprobs_num=0,
            token_ids_logprob=None,
            stream=False,
        )
        waiting.append(request)
    left, peak = requests * (prompt + decode), _SHARED.card_in_use()

    def ingest(*_: Any, **__: Any) -> list[Any]:
        nonlocal left, peak
        left, peak = left - 1, max(peak, _SHARED.card_in_use())
        taken = list(waiting)
        waiting.clear()
        if not taken and scheduler.is_fully_idle():
            taken.append(types.ShutdownReq())
        elif left < 0:
            raise RuntimeError("the requests did not end")
        scheduler.process_input_requests(taken)
        return taken

    scheduler.ingest_requests = ingest
    scheduler.run_event_loop()
    _SHARED.print_memory("requests", peak)


def main(folder: str, requests: str, words: list[str]) -> None:
    gc.disable()  # imports make many objects and little garbage
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "FLASHINFER_USE_CUDA_NORM"):
        os.environ[name] = "1"
    _SHARED.name_architecture(Path(folder))
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    server_args = import_module("sglang.srt.server_args")
    fixed = ["--model-path", folder, "--load-format", "dummy", "--skip-tokenizer-init"]
    arguments = server_args.prepare_server_args([*fixed, *words])
    if arguments.pp_size > 1 or (arguments.tp_size > 1 and arguments.enable_dp_attention):
        raise ValueError("--pp-size and --enable-dp-attention cannot be used on a phantom GPU")
    print(
        f"sglang v{import_module('sglang').__version__}: {arguments}\n{_SHARED.CONFIGURED}",
        flush=True,
    )
    module = import_module("sglang.srt.managers.scheduler")
    ports = server_args.PortArgs.init_new(arguments)
    rank = module.spawn_world_rank(arguments, tp_rank=0, pp_rank=0)
    ranks = module.SpawnRanks(world_rank=rank, dp_rank=None, gpu_id=0)
    module.publish(arguments, role="scheduler", ranks=ranks)
    if arguments.tp_size > 1:
        queues = import_module("sglang.srt.distributed.device_communicators.shm_broadcast")
        _SHARED.leave_out_other_ranks(queues.MessageQueue, "sglang.")
    gc.freeze()  # later collections skip the imported objects
    gc.enable()
    scheduler = module.Scheduler(arguments, ports)
    print(_SHARED.READY, flush=True)
    _SHARED.print_memory("start")
    if requests:
        _play(scheduler, *map(int, requests.split(",")))
    _SHARED.end()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
