"""Start of a serving engine on a phantom GPU.

The interpreter and the program that starts the engine are real; torch and vLLM are packages of a
few lines, and the engine prints lines of a log of vLLM 0.33.  The slow test starts the real vLLM.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from allocsim.errors import ConfigError
from allocsim.fitting import Phase, Started, start, start_largest
from allocsim.phantom import find_gpu
from allocsim.units import GIB, MIB
from tests.pythons import PYTHONS

H100 = find_gpu("H100")

_UP = """\
INFO core.py Initializing a V1 LLM engine (v0.33.0) with config: max_seq_len=8192
INFO model_runner.py Model loading took 15.0 GiB memory and 16.7 seconds
INFO gpu_worker.py Available KV cache memory: 53.16 GiB
INFO kv_cache_utils.py GPU KV cache size: 435,472 tokens, Maximum concurrency for 8,192 tokens \
per request: 53.16x
INFO model_runner.py Graph capturing finished in 11 secs, took 0.38 GiB
INFO gpu_worker.py CUDA graph pool memory: 0.38 GiB (actual), 0.7 GiB (estimated), difference: 0.31
INFO gpu_worker.py Free memory on device (78.57/79.1 GiB) on startup. Desired GPU memory \
utilization is (0.9, 71.19 GiB). Actual usage is 15.55 GiB for consumed memory (weights + \
non-torch), 2.48 GiB for peak activation, and 0.38 GiB for CUDAGraph memory."""
_BEGUN = "INFO core.py Initializing a V1 LLM engine (v0.33.0) with config: max_seq_len=8192"
_REFUSED = """\
INFO core.py Initializing a V1 LLM engine (v0.33.0) with config: max_seq_len=131072
INFO model_runner.py Model loading took 15.0 GiB memory and 16.7 seconds
INFO gpu_worker.py Available KV cache memory: 2.05 GiB"""
_REFUSAL = (
    "To serve at least one request with the models's max seq len (131072), (16.0 GiB KV cache is "
    "needed, which is larger than the available KV cache memory (2.05 GiB). Based on the available "
    "memory, the estimated maximum model length is 16784."
)

_MODULES = {
    "entrypoints/common/cli_args": """
class Parser:
    def parse_args(self, words):
        if "--fly" in words:
            raise SystemExit("error: unrecognized arguments: --fly")
        return words
make_arg_parser = lambda parser: Parser()
""",
    "utils/argparse_utils": "class FlexibleArgumentParser: pass",
    "usage/usage_lib": "class UsageContext:\n    OPENAI_API_SERVER = 'server'",
    "engine/arg_utils": """
import json, os
class AsyncEngineArgs:
    def __init__(self, words): self.words = words
    from_cli_args = classmethod(lambda kind, words: kind(words))
    def create_engine_config(self, usage_context):
        folder = self.words[self.words.index("--model") + 1]
        config = json.load(open(os.path.join(folder, "config.json")))
        assert usage_context == "server" and os.environ["HF_HUB_OFFLINE"] == "1"
        from vllm.model_executor.models import registry
        assert registry._run_in_subprocess(os.getpid) == os.getpid()
        with open(os.environ["SEEN"], "w") as file:
            json.dump([config, self.words], file)
        from types import SimpleNamespace
        one = SimpleNamespace(world_size=1, tensor_parallel_size=1)
        model = SimpleNamespace(enable_sleep_mode="--enable-sleep-mode" in self.words)
        return SimpleNamespace(words=self.words, parallel_config=one, model_config=model)
""",
    "v1/executor": """
class Executor:
    get_class = staticmethod(lambda config: "an executor")
""",
    "__init__": """
class SamplingParams:
    def __init__(self, max_tokens, **_): self.max_tokens = max_tokens
""",
    "v1/request": """
class Request:
    def __init__(self, request_id, prompt_token_ids, sampling_params):
        self.left = sampling_params.max_tokens
""",
    "v1/engine/core": """
import ctypes, os
def take(size): ctypes.CDLL(None).device_take(ctypes.c_size_t(size))
def give(size): ctypes.CDLL(None).device_give(ctypes.c_size_t(size))
class EngineCore:
    request_block_hasher = batch_queue = None
    running = ()
    scheduler = property(lambda self: self)
    def has_requests(self): return any(each.left > 0 for each in self.running)
    def add_request(self, request): self.running = (*self.running, request)
    def step_fn(self):  # each step takes 1 MiB per request
        for request in self.running:
            request.left -= int(os.environ.get("PER_STEP", "1"))
            take(1 << 20)
    def sleep(self, level): give(level << 19)
    def wake_up(self): pass
    def __init__(self, config, executor, log_stats):
        if os.environ.get("TOO_HIGH") in config.words:
            raise ValueError(os.environ["NOT_FREE"])
        print(os.environ["PRINTED"], flush=True)
        if os.environ["REFUSED"] and not set(os.environ["ACCEPTED"].split()) <= set(config.words):
            raise ValueError(os.environ["REFUSED"])
""",
    "model_executor/models/registry": "def _run_in_subprocess(describe): raise OSError",
}
_NAMES = (
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES = {'llama': 'LlamaForCausalLM'}\nMODEL_MAPPING_NAMES = {}"
)


def _write_modules(place: Path, sources: Mapping[str, str]) -> None:
    for name, text in sources.items():
        file = place / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Return a function that sets what the engine prints; it returns the file of its arguments."""
    torch = tmp_path / "torch"
    torch.mkdir()
    (torch / "__init__.py").write_text("")
    (torch / "version.py").write_text('__version__ = "2.14.0+cu130"\ncuda = "13.0"\n')
    sources = {f"vllm/{name}": text for name, text in _MODULES.items()}
    sources["transformers/models/auto/modeling_auto"] = _NAMES
    _write_modules(tmp_path, sources)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("SEEN", str(tmp_path / "seen.json"))
    monkeypatch.setattr("allocsim.phantom.engines.cache_root", lambda: tmp_path / "cache")

    def prints(text: str, refusal: str = "", accepted: str = "nothing") -> Path:
        monkeypatch.setenv("PRINTED", text)
        monkeypatch.setenv("REFUSED", refusal)
        monkeypatch.setenv("ACCEPTED", accepted)
        return tmp_path / "seen.json"

    return prints


def test_an_engine_that_starts_gives_its_own_sizes(engine: Callable[..., Path]) -> None:
    """The arguments reach the engine, and the model has the class that transformers names."""
    seen = engine(_UP)
    words = ("--max-model-len", "8192")
    found = start("Llama-3.1-8B", "vllm", H100, arguments=words, python=sys.executable)
    assert found.fits
    assert found.engine == "vLLM 0.33.0"
    assert found.headline().endswith("with room for 435,472 tokens")
    parts = {name: round(size / GIB, 2) for name, size in found.parts()}
    assert parts == {
        "weights": 15.0,
        "other memory after loading": 0.55,
        "activations at the peak of profiling": 1.78,
        "CUDA graphs, estimated by the engine": 0.7,
        "KV cache": 53.16,
    }
    assert found.sizes["graphs_bytes"] == pytest.approx(0.38 * GIB)
    config, arguments = json.loads(seen.read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["torch_dtype"] == "bfloat16"
    assert arguments[-2:] == list(words)
    assert "--skip-tokenizer-init" in arguments


def test_parts_of_a_start_fill_the_budget(engine: Callable[..., Path]) -> None:
    engine(_UP)
    found = start("Llama-3.1-8B", "vllm", H100, python=sys.executable)
    assert sum(size for _, size in found.parts()) / GIB == pytest.approx(71.19, abs=0.02)


def test_a_refusal_of_the_engine_is_reported_with_the_smallest_change(
    engine: Callable[..., Path],
) -> None:
    engine(_REFUSED, _REFUSAL)
    found = start("Llama-3.1-8B", "vllm", find_gpu("L4"), python=sys.executable)
    assert not found.fits
    assert found.phase is Phase.CACHE
    (refusal,) = found.refusals
    assert "131,072 tokens needs 16.00 GiB" in refusal.what
    assert refusal.helps.startswith("--max-model-len 16784")


def test_a_model_that_is_too_large_gets_more_cards(engine: Callable[..., Path]) -> None:
    engine(_BEGUN, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB")
    found = start("Llama-3.1-70B", "vllm", H100, python=sys.executable)
    assert found.phase is Phase.WEIGHTS
    (refusal,) = found.refusals
    assert refusal.what == "the card was full while it loaded the weights"
    assert refusal.helps.startswith("--tensor-parallel 2")  # 2 x 66 GiB of weights in 2 x 79 GiB


def test_the_length_that_a_refusal_names_is_started(engine: Callable[..., Path]) -> None:
    """The given length is replaced by the longest of the model, and that by the refusal's."""
    seen = engine(_REFUSED, _REFUSAL, "--max-model-len 16784")
    words = ("--max-model-len=9", "--max-num-seqs", "4")
    found = start_largest("max-model-len", "Llama-3.1-8B", "vllm", find_gpu("L4"),
                          arguments=words, python=sys.executable)  # fmt: skip
    assert found.fits
    assert found.arguments == ("--max-num-seqs", "4", "--max-model-len", "16784")
    assert json.loads(seen.read_text())[1][-4:] == list(found.arguments)


def test_as_many_requests_as_the_cache_holds_are_started(engine: Callable[..., Path]) -> None:
    engine(_UP)
    found = start_largest("max-num-seqs", "Llama-3.1-8B", "vllm", H100, python=sys.executable)
    assert found.arguments == ("--max-num-seqs", "53")  # room for 53.16 requests


_NOT_FREE = (
    "ValueError: Free memory on device cuda:0 (78.57/79.1 GiB) on startup is less than desired GPU "
    "memory utilization (0.99, 78.31 GiB)."
)


def test_a_utilization_that_is_refused_is_followed_by_that_of_the_refusal(
    engine: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine takes almost nothing of this card, so 0.99 is tried first."""
    engine(_UP)
    monkeypatch.setenv("TOO_HIGH", "0.99")
    monkeypatch.setenv("NOT_FREE", _NOT_FREE.replace("78.57/", "77.80/"))
    found = start_largest("gpu-memory-utilization", "Llama-3.1-8B", "vllm", H100,
                          python=sys.executable)  # fmt: skip
    assert found.fits
    assert found.arguments == ("--gpu-memory-utilization", "0.98")


def test_requests_are_played_and_give_the_peak_at_work(engine: Callable[..., Path]) -> None:
    """Two requests of four tokens take 8 MiB; the engine has taken nothing before."""
    engine(_UP)
    found = start(
        "Llama-3.1-8B", "vllm", H100, python=sys.executable, requests=(2, 16, 4)
    )  # fmt: skip
    at_start, at_work = found.stages["start"], found.stages["requests"]
    assert at_work == (at_start[0] + 8 * MIB, at_start[1] + 8 * MIB)
    assert found.fits
    assert found.invented == "sampled tokens"


def test_requests_that_do_not_end_are_a_failure(
    engine: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine(_UP)
    monkeypatch.setenv("PER_STEP", "0")
    found = start("Llama-3.1-8B", "vllm", H100, python=sys.executable, requests=(1, 2, 4))
    assert found.phase is Phase.PLAYED
    assert "did not end after 6 steps" in found.failure


def test_memory_asleep_is_reported_for_each_level(engine: Callable[..., Path]) -> None:
    engine(_UP)
    words = ("--enable-sleep-mode",)
    found = start(
        "Llama-3.1-8B", "vllm", H100, python=sys.executable, arguments=words, requests=(2, 16, 4)
    )  # fmt: skip
    awake, _ = found.stages["requests"]
    assert found.stages["sleep at level 1"][0] == awake - MIB // 2
    assert found.stages["sleep at level 2"][0] == awake - MIB // 2 - MIB


def test_the_first_refusal_is_the_answer_if_no_value_works(engine: Callable[..., Path]) -> None:
    engine(_REFUSED, _REFUSAL)
    found = start_largest("max-model-len", "Llama-3.1-8B", "vllm", H100, python=sys.executable)
    assert not found.fits
    assert found.arguments == ()


def test_the_recording_of_a_search_is_that_of_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last start, which is refused, has a recording as well."""

    def start_at(*_: object, arguments: tuple[str, ...], keep: Path, **__: object) -> Started:
        keep.write_text(" ".join(arguments))
        phase = Phase.CACHE if "--gpu-memory-utilization" in arguments else Phase.READY
        return Started("model", "", H100, "vLLM", arguments, 1, phase, {"fraction": 0.9},
                       round(H100.memory * 0.93), "", (), "", "", "", 1.0)  # fmt: skip

    monkeypatch.setattr("allocsim.fitting.serving_program.start", start_at)
    out = tmp_path / "start.pickle"
    found = start_largest("gpu-memory-utilization", "model", "vllm", H100,
                          arguments=("--fly",), keep=out)  # fmt: skip
    assert found.arguments == ("--fly",)
    assert out.read_text() == "--fly"
    assert list(tmp_path.iterdir()) == [out]


def test_an_option_that_has_no_largest_value_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected one of max-model-len"):
        start_largest("batch", "Llama-3.1-8B", "vllm", H100, python=sys.executable)


def test_several_cards_are_given_to_the_engine(engine: Callable[..., Path]) -> None:
    seen = engine(_UP)
    found = start("Llama-3.1-8B", "vllm", H100, python=sys.executable, cards=2)
    assert "starts on 2 of NVIDIA H100" in found.headline()
    assert json.loads(seen.read_text())[1][-2:] == ["--tensor-parallel-size", "2"]


def test_published_quantised_weights_are_described_to_the_engine(
    engine: Callable[..., Path],
) -> None:
    seen = engine(_UP)
    start("Qwen/Qwen2.5-7B-Instruct-AWQ", "vllm", H100, python=sys.executable)
    quantised = json.loads(seen.read_text())[0]["quantization_config"]
    assert (quantised["quant_method"], quantised["bits"]) == ("awq", 4)


def test_the_tokenizer_and_processors_beside_a_configuration_are_used(
    engine: Callable[..., Path], tmp_path: Path
) -> None:
    """A model with images profiles its encoder, for which the engine needs both."""
    seen = engine(_UP)
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 10}))
    start(str(folder), "vllm", H100, python=sys.executable)
    assert "--skip-tokenizer-init" in json.loads(seen.read_text())[1]
    (folder / "tokenizer_config.json").write_text("{}")
    start(str(folder), "vllm", H100, python=sys.executable)
    assert "--skip-tokenizer-init" not in json.loads(seen.read_text())[1]


def test_starts_of_one_model_describe_it_at_one_path(engine: Callable[..., Path]) -> None:
    """An engine finds the code that it compiled for the model by this path."""
    seen, places = engine(_UP), []
    for model in ("Llama-3.1-8B", "Llama-3.1-8B", "Llama-3.2-1B"):
        start(model, "vllm", H100, python=sys.executable)
        words = json.loads(seen.read_text())[1]
        places.append(words[words.index("--model") + 1])
    assert places[0] == places[1] != places[2]


def test_arguments_that_the_engine_does_not_know_are_an_error(
    engine: Callable[..., Path],
) -> None:
    engine(_UP)
    with pytest.raises(ConfigError, match="unrecognized arguments: --fly"):
        start("Llama-3.1-8B", "vllm", H100, arguments=("--fly",), python=sys.executable)


def test_a_model_without_text_is_refused() -> None:
    with pytest.raises(ConfigError, match="ResNet-18 is not a language model"):
        start("ResNet-18", "vllm", H100, python=sys.executable)


_SGLANG = {
    "sglang/__init__": "__version__ = '0.5.23'",
    "sglang/srt/server_args": """
import os
class Arguments(str): tp_size = pp_size = 1; enable_dp_attention = False
def prepare_server_args(words):
    found = Arguments("mem_fraction_static=0.85")
    if "--pp-size" in words: found.tp_size = found.pp_size = 2
    return found
class PortArgs: init_new = staticmethod(lambda arguments: None)
""",
    "sglang/srt/managers/io_struct": """
class TokenizedGenerateReqInput:
    def __init__(self, sampling_params, input_ids, **_):
        self.left, self.prompt = sampling_params.left, list(input_ids)
class ShutdownReq: left = -1
""",
    "sglang/srt/sampling/sampling_params": """
class SamplingParams:
    def __init__(self, max_new_tokens, **_): self.left = max_new_tokens
    def normalize(self, tokenizer): pass
""",
    "sglang/srt/managers/scheduler": """
import atexit, ctypes, os
class SpawnRanks:
    def __init__(self, **_): pass
spawn_world_rank = publish = lambda *_, **__: None
class Scheduler:
    def __init__(self, arguments, ports):
        atexit.register(print, os.environ["PRINTED"])  # the process must flush it
        self.running, self.ends = [], False
    def is_fully_idle(self): return not self.running
    def process_input_requests(self, requests):
        self.ends = any(each.left < 0 for each in requests)
        self.running += [each for each in requests if each.left > 0]
    def run_event_loop(self):  # each step takes 1 MiB per request
        while not self.ends:
            self.ingest_requests()
            for each in self.running:
                each.left -= 1
                ctypes.CDLL(None).device_take(ctypes.c_size_t(1 << 20))
            self.running = [each for each in self.running if each.left]
""",
}
_SGLANG_UP = """\
Load weight end. elapsed=1.55 s, type=Qwen2ForCausalLM, avail mem=40.72 GB, mem usage=3.08 GB.
KV Cache is allocated. #tokens: 1287482, K size: 17.19 GB, V size: 17.20 GB
Capture target decode CUDA graph end. Time elapsed: 3.00 s. mem usage=0.09 GB. avail mem=5.00 GB.
"""


def test_sglang_gives_its_sizes_and_plays_requests(
    engine: Callable[..., Path], tmp_path: Path
) -> None:
    """Two requests of four tokens take 8 MiB."""
    _write_modules(tmp_path, _SGLANG)
    engine(_SGLANG_UP)
    found = start("Qwen2.5-1.5B", "sglang", H100, python=sys.executable, requests=(2, 16, 4))
    assert found.fits, found.failure
    assert found.engine == "SGLang 0.5.23"
    sizes = {name: round(size / GIB, 2) for name, size in found.parts() if size}
    assert sizes == {"weights": 3.08, "KV cache": 34.39}
    assert found.sizes["kv_cache_tokens"] == 1287482
    assert found.stages["requests"][0] == found.stages["start"][0] + 8 * MIB


def test_sglang_is_started_with_tensor_parallelism_only(
    engine: Callable[..., Path], tmp_path: Path
) -> None:
    """Other kinds are refused as arguments, because nothing was tried that could fail."""
    _write_modules(tmp_path, _SGLANG)
    engine(_SGLANG_UP)
    found = start("Qwen2.5-1.5B", "sglang", H100, python=sys.executable, cards=2)
    assert found.fits
    assert found.arguments == ("--tp-size", "2")
    words = ("--pp-size", "2")
    with pytest.raises(ConfigError, match="--pp-size and --enable-dp-attention cannot be used"):
        start("Qwen2.5-1.5B", "sglang", H100, arguments=words, python=sys.executable, cards=2)


def test_a_server_that_cannot_be_started_is_refused(engine: Callable[..., Path]) -> None:
    engine(_UP)
    with pytest.raises(ConfigError, match="ollama cannot be started"):
        start("Llama-3.1-8B", "ollama", H100, python=sys.executable)


_OPTIONS = {
    "vllm": ("--max-model-len", "4096", "--enforce-eager"),
    "sglang": ("--context-length=4096", "--cuda-graph-backend-decode=disabled",
               "--cuda-graph-backend-prefill=disabled"),
}  # fmt: skip


def _with(server: str) -> str:
    for python in PYTHONS:
        place = Path(python).absolute().parent.parent / "lib"
        if any(place.glob(f"python3*/site-packages/{server}/__init__.py")):
            return python
    pytest.skip(f"ALLOCSIM_TORCH_PYTHON names no Python with {server}")


@pytest.mark.slow
@pytest.mark.parametrize("cards", [1, 2])
@pytest.mark.parametrize("server", _OPTIONS)
def test_an_installed_engine_starts_and_its_recording_is_whole(
    server: str, cards: int, tmp_path: Path
) -> None:
    """The cache is what the engine's budget leaves, and the replay has each recorded address."""
    from allocsim.recording import load  # noqa: PLC0415
    from allocsim.replaying import replay  # noqa: PLC0415

    out = tmp_path / "start.pickle"
    found = start("Qwen3-0.6B", server, H100, arguments=_OPTIONS[server], python=_with(server),
                  requests=(2, 256, 4), keep=out, cards=cards)  # fmt: skip
    assert found.fits, found.failure
    # 596,049,920 parameters of two bytes; a token has 28 layers of 2 x 8 x 128 numbers.
    # SGLang prints the decrease of the free memory, with tables, workspaces and kernels.
    others = {"vllm": 0.02, "sglang": 0.1}[server]
    assert found.sizes["weights_bytes"] / GIB == pytest.approx(
        596_049_920 * 2 / cards / GIB, abs=others
    )
    a_token = 28 * 2 * 8 * 128 * 2 // cards
    in_cache = found.sizes["kv_cache_tokens"] * a_token
    assert in_cache == pytest.approx(found.sizes["kv_cache_bytes"], rel=0.001)
    assert found.stages["requests"][1] >= in_cache
    (device,) = replay(load(out)).devices
    assert device.parting is None
