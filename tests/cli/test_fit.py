"""Tests of `allocsim fit`; tests/fitting/conftest.py replaces PyTorch by simulated programs."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from allocsim import CachingAllocator, load
from allocsim.cli import fit as of_command
from allocsim.cli import fit_options
from allocsim.fitting import (
    ATTENTION,
    CONFIGURATIONS,
    DTYPES,
    GENERATOR_QUANTS,
    GENERATORS,
    OPTIMIZERS,
    PARALLEL,
    SIZES,
    STARTS,
    TORCHVISION,
    Task,
)
from allocsim.fitting.laws import TRANSFORMERS
from allocsim.phantom import CARDS
from allocsim.recording import Action
from allocsim.units import MIB
from tests.cli.conftest import Done
from tests.fitting.conftest import Pretended, pretend

__all__ = ["pretend"]  # a fixture

Cli = Callable[..., Done]
Pretend = Callable[..., Pretended]


def batches(allocator: CachingAllocator, program: str) -> int:
    """Allocate 1 GiB per sequence of the batch; a user's program has a batch of 1."""
    found = re.search(r"\((\d+), \d+\), device", program)
    for _ in range(int(found[1]) if found else 1):
        allocator.malloc(1024 * MIB)
    return 0


def test_the_answer_fits_a_screen_and_the_exit_code_says_it(cli: Cli, pretend: Pretend) -> None:
    pretend(batches)
    done = cli("fit", "gpt2", "--gpu", "RTX 4090", "--batch", "4")
    assert done.code == 0
    assert "Verdict         fits NVIDIA GeForce RTX 4090 with 19.15 GiB to spare" in done.out
    assert "4.00 GiB (4,294,967,296 bytes) reserved at the peak" in done.out
    assert "4.00 GiB of 23.15 GiB" in done.out
    assert "4 training steps of gpt2, batch 4 x 1,024 tokens, bf16, adamw" in done.out
    lines = done.out.splitlines()
    assert len(lines) <= 22
    assert max(map(len, lines)) <= 80


def test_what_does_not_fit_exits_with_3_and_says_what_it_needs(cli: Cli, pretend: Pretend) -> None:
    pretend(batches)
    done = cli("fit", "gpt2", "--gpu", "RTX 4090", "--batch", "30")
    assert done.code == 3
    assert "30.00 GiB are needed, 6.85 GiB more than it has" in " ".join(done.out.split())
    assert "at a request that needs 1024.00 MiB" in " ".join(done.out.split())
    assert "To paste" not in done.out
    assert len(done.out.splitlines()) <= 22


def test_the_json_has_the_keys_that_scripts_rely_on(cli: Cli, pretend: Pretend) -> None:
    pretend(batches)
    answer = json.loads(cli("fit", "gpt2", "--gpu", "A100 80GB", "--batch", "8", "--json").out)
    assert answer["fits"] is True
    assert answer["device_memory"] == 81039 * MIB
    assert answer["peak_reserved_bytes"] == answer["peak_allocated_bytes"] == 8192 * MIB
    low, high = answer["process_bytes"]
    assert 8192 * MIB < low < high
    assert sum(answer["breakdown"].values()) == answer["peak_reserved_bytes"]
    assert answer["engine"] == "program"
    assert isinstance(answer["notes"], list)
    short = json.loads(cli("fit", "gpt2", "--gpu", "L4", "--batch", "30", "--json").out)
    assert (short["fits"], short["needed_bytes"]) == (False, 30 * 1024 * MIB)
    assert short["peak_reserved_bytes"] == 21 * 1024 * MIB
    assert short["oom"]["message"].startswith("CUDA out of memory.")


def test_several_cards_are_a_table_and_one_that_fits_is_enough(cli: Cli, pretend: Pretend) -> None:
    pretend(batches)
    names = ["--gpu", "T4", "--gpu", "RTX 4090", "--gpu", "A100 80GB"]
    done = cli("fit", "gpt2", *names, "--batch", "20")
    assert done.code == 0
    rows = [line.split() for line in done.out.splitlines()]
    assert [row[-1] for row in rows if "GiB" in row] == ["not", "fits", "fits"]
    document = json.loads(cli("fit", "gpt2", *names, "--batch", "20", "--json").out)
    assert [card["fits"] for card in document["cards"]] == [False, True, True]
    assert document["gpu"] == "NVIDIA GeForce RTX 4090"
    assert cli("fit", "gpt2", "--gpu", "T4", "--gpu", "L4", "--batch", "40").code == 3


def test_every_card_that_is_known_can_be_asked_about(cli: Cli, pretend: Pretend) -> None:
    pretend(batches)
    document = json.loads(cli("fit", "gpt2", "--gpu", "all", "--batch", "2", "--json").out)
    assert len(document["cards"]) > 50
    assert len({card["device_memory"] for card in document["cards"]}) > 20


def test_the_largest_batch(cli: Cli, pretend: Pretend) -> None:
    pretend(batches)
    done = cli("fit", "gpt2", "--gpu", "RTX 4090", "--find", "batch")
    assert done.code == 0
    text = " ".join(done.out.split())
    assert "batch=23 is the largest that fits NVIDIA GeForce RTX 4090; 24 does not" in text
    assert re.search(r"24 +23\.00 GiB +runs out of memory", done.out)
    document = json.loads(cli("fit", "gpt2", "--gpu", "L4", "--find", "batch", "--json").out)
    assert (document["largest"], document["peak_reserved_bytes"]) == (21, 21 * 1024 * MIB)
    assert cli("fit", "gpt2", "--device-memory", "600MiB", "--find", "batch").code == 3


def tokens(allocator: CachingAllocator, program: str) -> int:
    """Allocate 1 MiB per token of the batch."""
    found = re.search(r"\((\d+), (\d+)\), device", program)
    assert found is not None
    allocator.malloc(int(found[1]) * int(found[2]) * MIB)
    return 0


def test_the_largest_batch_for_several_lengths(cli: Cli, pretend: Pretend, tmp_path: Path) -> None:
    pretend(tokens)
    words = ["fit", "Llama-3.2-1B", "--gpu", "RTX 4090", "--find", "batch,seq"]
    done = cli(*words)
    assert done.code == 0
    text = " ".join(done.out.split())
    assert "fits NVIDIA GeForce RTX 4090: 46 at seq=512, 23 at seq=1,024, 11 at seq=2,048" in text
    assert re.search(r"2,048 +11 +22\.00 GiB +1\.15 GiB +12 runs out of memory", done.out)
    assert "4 training steps of Llama-3.2-1B, batch and seq as below, bf16, adamw" in text
    assert max(map(len, done.out.splitlines())) <= 80
    printed = cli(*words, "--with", "seq=256,30000", "--json").out
    document = json.loads(printed)
    assert [row["at"] for row in document["frontier"]] == [{"seq": 256}, {"seq": 30000}]
    assert [row["largest"] for row in document["frontier"]] == [92, None]
    assert document["fits"] is True
    assert cli(*words, "--with", "seq=30000").code == 3
    assert "none" in cli(*words, "--with", "seq=30000").out
    file, figure = tmp_path / "front.json", tmp_path / "front.png"
    file.write_text(printed)
    assert cli("plot", "fit", file, "-o", figure).code == 0
    assert figure.read_bytes().startswith(b"\x89PNG")
    file.write_text(printed.replace("92", "-1"))
    assert "has no answer" in cli("plot", "fit", file, "-o", figure).err


def test_a_cache_that_had_to_be_emptied_is_told(cli: Cli, pretend: Pretend) -> None:
    def cached(gpu: CachingAllocator, _: str) -> int:
        gpu.free(gpu.malloc(15 * 1024 * MIB))
        gpu.malloc(18 * 1024 * MIB)
        return 0

    pretend(cached)
    done = cli("fit", "gpt2", "--gpu", "RTX 4090")
    assert "1 retry emptied the cache" in " ".join(done.out.split())
    done = cli("fit", "gpt2", "--gpu", "RTX 4090", "--json")
    assert json.loads(done.out)["num_alloc_retries"] == 1


def test_the_fewest_gpus(cli: Cli, pretend: Pretend) -> None:
    pretend(
        lambda gpu, text: 0 * gpu.malloc(80 * 1024 * MIB // int(text.split("world_size=")[1][0]))
    )
    done = cli("fit", "gpt2", "--gpu", "RTX 4090", "--fsdp", "--find", "gpus")
    assert done.code == 0
    assert "4 x NVIDIA GeForce RTX 4090 are the fewest that fit, among" in done.out
    document = json.loads(
        cli("fit", "gpt2", "--gpu", "L4", "--fsdp", "--find", "gpus", "--json").out
    )
    assert (document["fewest"], document["peak_reserved_bytes"]) == (4, 20 * 1024 * MIB)
    assert "--fsdp or --ddp" in cli("fit", "gpt2", "--gpu", "L4", "--find", "gpus").err


@pytest.mark.parametrize("cards", [["L4"], ["T4", "L4", "RTX 4090"]], ids=str)
def test_an_answer_can_be_drawn(
    cli: Cli, pretend: Pretend, tmp_path: Path, cards: list[str]
) -> None:
    pretend(batches)
    names = [word for card in cards for word in ("--gpu", card)]
    file, figure = tmp_path / "answer.json", tmp_path / "fit.png"
    file.write_text(cli("fit", "gpt2", *names, "--batch", "16", "--json").out)
    assert cli("plot", "fit", file, "-o", figure).code == 0
    assert figure.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"cards": [3]}', '{"gpu": "x", "fits": 1}'])
def test_a_file_without_an_answer_is_not_drawn(cli: Cli, tmp_path: Path, text: str) -> None:
    file = tmp_path / "answer.json"
    file.write_text(text)
    done = cli("plot", "fit", file, "-o", tmp_path / "x.png")
    assert (done.code, len(done.err.splitlines())) == (2, 1)
    assert "has no answer; expected the output of `allocsim fit --json`" in done.err


def test_a_program_of_ones_own_comes_after_two_dashes(cli: Cli, pretend: Pretend) -> None:
    ran = pretend(batches)
    done = cli("fit", "--gpu", "L4", "--", "python", "train.py", "--epochs", "3")
    assert done.code == 0
    assert ran.programs == ["python train.py --epochs 3"]
    assert "Program         python train.py --epochs 3" in done.out


def test_the_recording_replays_as_any_other(cli: Cli, pretend: Pretend, tmp_path: Path) -> None:
    pretend(batches)
    out = tmp_path / "run.pickle"
    assert cli("fit", "gpt2", "--gpu", "L4", "--batch", "3", "-o", out).code == 0
    assert len(load(out).devices[0]) == 6


def test_the_recording_of_the_largest_is_kept(cli: Cli, pretend: Pretend, tmp_path: Path) -> None:
    pretend(batches)
    out = tmp_path / "largest.pickle"
    assert cli("fit", "gpt2", "--gpu", "L4", "--find", "batch", "-o", out).code == 0
    assert load(out).devices[0].count(Action.ALLOC) == 21
    more = ["--fsdp", "--find", "gpus", "-o", out]
    assert cli("fit", "gpt2", "--gpu", "L4", "--batch", "3", *more).code == 0
    assert load(out).devices[0].count(Action.ALLOC) == 3
    assert cli("replay", out).code == 0
    nothing = tmp_path / "nothing.pickle"
    too_small = ["--device-memory", "600MiB", "--find", "batch"]
    assert cli("fit", "gpt2", *too_small, "-o", nothing).code == 3
    assert not nothing.exists(), "nothing fits, so that there is nothing to keep"


def test_a_search_says_that_another_release_ran(cli: Cli, pretend: Pretend) -> None:
    pretend(batches)
    for size in (["batch"], ["gpus", "--fsdp"]):
        more = ["--gpu", "L4", "--torch", "2.11", "--find", *size]
        done = cli("fit", "gpt2", *more)
        assert "Note            PyTorch 2.11 is not installed: this is 2.15.0" in done.out
        document = json.loads(cli("fit", "gpt2", *more, "--json").out)
        assert document["notes"][0] == "PyTorch 2.11 is not installed: this is 2.15.0"
        assert (
            json.loads(cli("fit", "gpt2", "--gpu", "L4", "--json", "--find", *size).out)["notes"]
            == []
        )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("fit", "fit needs a model, or a program after --"),
        ("fit gpt2", 'fit needs a card: --gpu "RTX 4090", or --device-memory'),
        (
            "fit gpt2 --gpu XTX",
            "GPU 'XTX' is not known: expected a name of allocsim fit --list-gpus",
        ),
        ("fit gpt22 --gpu L4", "'gpt22' is not a known model"),
        ("fit gpt2 --gpu L4 --batch 0", "batch 0 is not possible"),
        ("fit gpt2 --gpu L4 --seq 5000", "gpt2 has 1,024 positions; 5,000 tokens are too many"),
        ("fit gpt2 --gpu L4 --serve --optimizer sgd", "--optimizer applies to training"),
        ("fit gpt2 --gpu L4 --prompt 5", "--prompt applies to --serve"),
        ("fit gpt2 --gpu L4 --lora-targets q_proj", "--lora-targets needs --lora RANK"),
        ("fit gpt2 --gpu L4 --lengths nowhere", "expected a file of whole numbers"),
        ("fit --gpu L4 --batch 2 -- python x.py", "--batch is for a MODEL"),
        ("fit --gpu L4 --find batch -- python x.py", "--find is for a MODEL"),
        ("fit gpt2 --gpu L4 --find width", "'width' is not a size; expected one of batch, seq"),
        ("fit gpt2 --gpu L4 --find max-model-length", "gpus, max-model-len, max-num-seqs"),
        ("fit gpt2 --gpu L4 --find batch,batch", "'batch,batch' is not a size"),
        ("fit gpt2 --gpu L4 --find batch,gpus", "gpus cannot be combined with another size"),
        ("fit gpt2 --gpu L4 --find batch --with seq=9", "--with needs --find with two sizes"),
        ("fit gpt2 --gpu L4 --with seq=9", "--with needs --find with two sizes"),
        (
            "fit gpt2 --gpu L4 --find batch,seq --with 9",
            "expected values of seq, e.g. seq=512,1024",
        ),
        ("fit gpt2 --gpu L4 --find batch,seq --with seq=2000", "gpt2 has 1,024 positions"),
        (
            "fit gpt2 --gpu L4 --find batch,seq -o x.pickle",
            "-o writes one recording; expected --find with one",
        ),
        ("fit gpt2 --gpu L4 --find batch -o x.txt", "x.txt cannot be a recording"),
        ("fit gpt2 --gpu L4 -o x.txt", "x.txt cannot be a recording"),
        ("fit gpt2 --gpu L4 --gpu T4 -o x.pickle", "-o writes one recording; expected one card"),
        ("fit gpt2 --gpu L4 --device-memory 1GiB", "both select the device; expected one"),
        ("fit gpt2 --gpu L4 --python /usr/bin/perl", "has no PyTorch; expected a CUDA build"),
        ("fit resnet50 --gpu L4 --serve", "ResNet-50 answers no prompts"),
    ],
)
def test_what_cannot_be_answered_is_one_sentence(
    cli: Cli, pretend: Pretend, arguments: str, sentence: str
) -> None:
    pretend(batches)
    done = cli(*arguments.split())
    assert (done.code, done.out) == (2, "")
    assert sentence in done.err
    assert len(done.err.splitlines()) == 1


def test_a_program_that_fails_is_told_with_its_own_error(cli: Cli, pretend: Pretend) -> None:
    pretend(batches, "Traceback ...\nValueError: Unrecognized model in config.json\n")
    done = cli("fit", "gpt2", "--gpu", "L4")
    assert done.code == 2
    assert "with ValueError: Unrecognized model in config.json" in done.err


def test_the_options_know_what_the_package_knows() -> None:
    """The tables of options in cli/fit.py, which save an import, equal those of `Task`."""
    assert tuple(DTYPES) == of_command._DTYPES
    assert tuple(OPTIMIZERS) == of_command._OPTIMIZERS
    assert tuple(ATTENTION) == of_command._ATTENTION
    assert of_command._STARTS == STARTS
    assert of_command._QUANTS == GENERATOR_QUANTS
    assert (*SIZES, "gpus") == of_command._SIZES
    assert tuple(of_command._PARALLEL) == PARALLEL
    fields = {each.name for each in dataclasses.fields(Task)}
    assert set(fit_options._OF_THE_TASK) == fields - {"model", "is_training"}


def test_the_program_and_the_presets_can_be_looked_at(cli: Cli) -> None:
    done = cli("fit", "gpt2", "--show-program")
    assert done.code == 0
    compile(done.out, "program.py", "exec")
    assert "Llama-3.2-1B\n" in cli("fit", "--list-models").out


def test_models_and_cards_are_listed_one_on_each_line(cli: Cli) -> None:
    models = [*CONFIGURATIONS, *TORCHVISION, *GENERATORS]
    assert cli("fit", "--list-models").out.splitlines() == models
    assert cli("fit", "--list-gpus").out.splitlines() == list(CARDS)
    assert json.loads(cli("fit", "--list-models", "--json").out)["models"] == models
    assert json.loads(cli("fit", "--list-gpus", "--json").out)["gpus"] == list(CARDS)


def test_a_law_notes_another_release_of_transformers(cli: Cli) -> None:
    command = ("fit", "Mistral-7B", "--gpu", "B200", "--seq", "904", "--dtype", "autocast-bf16")
    given = (*command, "--engine", "laws", "--transformers", "5.23.1", "--json")
    answer = json.loads(cli(*given).out)
    assert answer["transformers"] == "5.23"
    assert len(answer["notes"]) == 2  # a note about laws and a note about attention
    newer = cli(*command, "--engine", "laws", "--transformers", "5.31.2")
    output = " ".join(newer.out.split())
    assert "PyTorch 2.15.0, transformers 5.23" in output
    assert "transformers 5.31.2 is newer than 5.23, the version of the laws" in output
    older = cli(*command, "--engine", "laws", "--transformers", "4.57").out
    assert "transformers 4.57 is older than 5.23, the version of the laws" in " ".join(
        older.split()
    )


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        (("--engine", "laws"), "--engine laws is for a MODEL; a program is run"),
        (("--transformers", "5.24"), "--transformers is for a MODEL; a program runs unchanged"),
        (("--python", "python3"), "--python is for a MODEL; a program runs unchanged"),
    ],
)
def test_what_a_program_settles_itself_is_refused_beside_it(
    cli: Cli, option: tuple[str, ...], sentence: str
) -> None:
    done = cli("fit", "--gpu", "L4", *option, "--", "python", "train.py")
    assert done.code == 2
    assert sentence in done.err


def test_the_help_names_the_release_that_has_laws(cli: Cli) -> None:
    output = " ".join(cli("fit", "--help").out.split())
    assert f"with laws, which are for transformers {TRANSFORMERS}:" in output


def test_a_program_has_its_own_transformers(cli: Cli) -> None:
    done = cli("fit", "gpt2", "--gpu", "T4", "--engine", "program", "--transformers", "5.24")
    assert done.code == 2
    assert "transformers 5.24 applies to laws (--engine laws)" in done.err
    done = cli("fit", "gpt2", "--gpu", "A100", "--engine", "laws", "--transformers", "new")
    assert done.code == 2
    assert "'new' is not a version of transformers; expected a version such as 5.23" in done.err


def test_the_command_answers_without_pytorch(cli: Cli, tmp_path: Path) -> None:
    """The recording replays like any other."""
    out = tmp_path / "law.pickle"
    command = ("fit", "gpt2", "--gpu", "RTX 4090", "--batch", "2", "--engine", "laws")
    done = cli(*command, "--json", "-o", str(out))
    assert done.code == 0
    answer = json.loads(done.out)
    assert (answer["engine"], answer["torch_version"]) == ("laws", "2.15.0")
    assert {"parameters", "optimizer state", "temporaries"} <= set(answer["breakdown"])
    assert any(note.startswith("by law: the requests follow formulas") for note in answer["notes"])
    replayed = json.loads(cli("replay", str(out), "--json").out)
    assert replayed["devices"][0]["fidelity"]["is_exact"]
    text = cli(*command).out
    assert "laws of PyTorch 2.15.0" in text
    assert len(text.splitlines()) <= 22


def test_the_largest_batch_is_found_by_laws_too(cli: Cli) -> None:
    command = ("fit", "gpt2", "--gpu", "RTX 4090", "--find", "batch", "--engine", "laws", "--json")
    answer = json.loads(cli(*command).out)
    assert (answer["engine"], answer["largest"]) == ("laws", 18)
    assert [each["fits"] for each in answer["tried"] if each["value"] == 19] == [False]


def test_what_fits_without_a_limit_is_told_of_the_card_s_memory(cli: Cli) -> None:
    """The length is limited by the model's positions, which already fit an unlimited card."""
    done = cli("fit", "gpt2", "--gpu", "L4", "--batch", "2", "--find", "seq", "--engine", "laws",
               "--seq", "1023")  # fmt: skip
    assert "seq=1,024 fits NVIDIA L4, and is the maximum of the model" in done.out
    assert "3.11 GiB of 21.53 GiB" in done.out
