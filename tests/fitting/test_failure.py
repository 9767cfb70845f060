"""Reports of programs that ended early; the messages are those of Python and transformers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from allocsim.fitting import model_of
from allocsim.fitting.run_result import why_it_failed

EARLY = "without using the GPU"
UNKNOWN = (
    "ValueError: The checkpoint you are trying to load has model type `{}` but Transformers does "
    "not recognize this architecture. This could be because of an issue with the checkpoint, or "
    "because your version of Transformers is out of date.\n\n"
    "You can update Transformers with the command `pip install --upgrade transformers`."
)
OWN_CODE = (
    "ValueError: The repository . contains custom code which must be executed to correctly load "
    "the model. You can inspect the repository content.\n"
    "Please pass the argument `trust_remote_code=True` to allow custom code to be run."
)
NO_HEAD = (
    "ValueError: Unrecognized configuration class <class 'transformers.models.clip."
    "configuration_clip.CLIPConfig'> for this kind of AutoModel: AutoModelForCausalLM.\n"
    "Model type should be one of ApertusConfig, ArceeConfig."
)


@pytest.mark.parametrize(
    ("config", "log", "said"),
    [
        (
            {"model_type": "llamax"},
            UNKNOWN.format("llamax"),
            "the installed transformers knows no model_type 'llamax'",
        ),
        (
            {"model_type": "phi9", "auto_map": {"AutoModelForCausalLM": "phi9.Phi9"}},
            UNKNOWN.format("phi9"),
            "phi9 needs custom code (auto_map), which is not fetched; expected a model_type "
            "that the installed transformers knows",
        ),
        (
            {"model_type": "phi9", "auto_map": {"AutoConfig": "phi9.Config"}},
            OWN_CODE,
            "phi9 needs custom code (auto_map), which is not fetched; expected a model_type "
            "that the installed transformers knows",
        ),
        (
            {"model_type": "clip"},
            NO_HEAD,
            "transformers has no AutoModelForCausalLM of model_type 'clip'",
        ),
        (
            {"model_type": "llama", "hidden_act": "sillu"},
            "KeyError: 'sillu'",
            "hidden_act is 'sillu', which transformers does not know",
        ),
        (
            {"model_type": "llama", "rope_scaling": {"rope_type": "nosuch", "factor": 2}},
            "KeyError: 'nosuch'",
            "rope_scaling.rope_type is 'nosuch', which transformers does not know",
        ),
        (
            {"model_type": "llama", "torch_dtype": "float12"},
            "AttributeError: module 'torch' has no attribute 'float12'",
            "torch_dtype is 'float12', which transformers does not know",
        ),
    ],
)
def test_why_it_failed_names_file_and_entry_of_an_impossible_model(
    tmp_path: Path, config: dict[str, object], log: str, said: str
) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    assert why_it_failed(f"Traceback\n{log}\n", 1, EARLY, model_of(str(file))) == f"{file}: {said}"


def test_why_it_failed_quotes_any_other_error(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": "llama", "hidden_act": "silu"}))
    assert why_it_failed("KeyError: 'else'", 1, EARLY, model_of(str(file))) == (
        "the program ended without using the GPU, with KeyError: 'else'"
    )
    assert why_it_failed("", -9, "before its end") == (
        "the program ended before its end, with exit code -9: it printed nothing"
    )


def test_why_it_failed_reads_an_error_of_one_rank_of_several() -> None:
    """An earlier error, without a rank, was handled."""
    log = "OSError: no NVLink\n[rank0]: Traceback\n[rank0]: ValueError: no group\n"
    assert why_it_failed(log, 1, EARLY).endswith("with ValueError: no group")


def test_why_it_failed_says_what_a_users_function_must_return() -> None:
    log = "AttributeError: 'int' object has no attribute 'to'"
    assert why_it_failed(log, 1, EARLY, model_of("mine:make")) == (
        "mine:make returned int; expected a model, or a model and a batch"
    )
    assert why_it_failed(log, 1, EARLY).endswith(f"with {log}")  # a user's own program


def test_why_it_failed_names_file_and_line_of_a_syntax_error() -> None:
    log = (
        "Traceback (most recent call last):\n"
        '  File "/tmp/program.py", line 6, in <module>\n    from mine import make\n'
        '  File "/home/me/mine.py", line 1\n    def make(:\n             ^\n'
        "SyntaxError: invalid syntax\n"
    )
    assert why_it_failed(log, 1, EARLY, model_of("mine:make")) == (
        "the program ended without using the GPU, with SyntaxError: invalid syntax "
        "(/home/me/mine.py, line 1)"
    )
