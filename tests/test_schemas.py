"""Each command's JSON matches its schema, and every schema is described.

tests/cli/conftest.py checks the output of every test with --json; this file checks the schemas, and
a document of each command.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, cast

import pytest
from jsonschema import Draft202012Validator

from allocsim import CachingAllocator, step
from allocsim.analysis.explain import KINDS
from allocsim.analysis.explain.cause import MESSAGE_CAUSES
from allocsim.analysis.lint import CHECKS
from allocsim.analysis.step import Request
from allocsim.cli import main
from allocsim.cli.output import SCHEMA_VERSION, versioned
from allocsim.phantom import ProcessRecording, Recorded, RecordedProgram, find_gpu
from allocsim.recording import Action
from allocsim.report.crosscheck import document as crosscheck_document
from allocsim.report.record import document as record_document
from allocsim.report.step import document as step_document
from allocsim.units import MIB
from allocsim.verify import Report, Script
from allocsim.verify.comparison import Difference, Divergence
from tests.reference import commands
from tests.schemas import FOLDER, RECORDED, SHARED, keys, schema_of, schemas, wrong_with

ROOT = Path(__file__).parents[1]
TRACE = "traces/counted/function-torch2.15.npz.gz"
SIZED = "traces/sized/"
MESSAGE = (
    "CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 8.00 GiB total capacity; 7.00 GiB "
    "already allocated; 512.00 MiB free; 7.25 GiB reserved in total by PyTorch)"
)
FAILED = "traces/gpt2-ragged-oom-torch2.15.pickle.gz"

LINES = {
    "replay": ["replay", FAILED],
    "replay of another setting": ["replay", TRACE, "--conf", "max_split_size_mb:64"],
    "replay that searches": ["replay", TRACE, "--cure"],
    "explain a message": ["explain", MESSAGE],
    "explain two messages": ["explain", f"{MESSAGE}\n{MESSAGE.replace('2.00', '3.00')}"],
    "explain nothing": ["explain", "all is well"],
    "explain a recording": ["explain", TRACE],
    "top": ["top", TRACE],
    "top by category": ["top", TRACE, "--by", "category"],
    "top at an entry": ["top", TRACE, "--at", "100", "--by", "stack"],
    "compare": ["compare", TRACE, "--conf", "expandable_segments:True"],
    "gate": ["gate", TRACE, "--max-reserved", "1GiB"],
    "ranks": ["ranks", f"{SIZED}batch2.npz.gz", f"{SIZED}batch3.npz.gz"],
    "colocate": ["colocate", TRACE, TRACE, "--sleep", "A:exit"],
    "colocate that fails": [
        *("colocate", TRACE, TRACE, "--device-memory", "256MiB", "--no-smallest"),
    ],
    "risk": ["risk", TRACE, "--device-memory", "1GiB", "--try", "expandable_segments:True"],
    "tune": ["tune", TRACE, "--try", "expandable_segments:True"],
    "tune for a device": ["tune", TRACE, "--find-device", "--try", "max_split_size_mb:64"],
    "fit a serving engine": ["fit", "Llama-3.2-1B", "--gpu", "RTX 4090", "--server", "vllm"],
    "scale": [
        *("scale", f"{SIZED}batch2.npz.gz", "--at", "batch=2"),
        *(f"{SIZED}batch3.npz.gz", "--at", "batch=3", "--to", "batch=4"),
    ],
    "step": ["step", TRACE, "--at", "100", "--count", "5"],
    "watch": ["watch", "traces/counted", "--once"],
    "lint": ["lint", TRACE, "--conf", "PYTORCH_ALLOC_CONF=max_split_size_mb=1", "--torch", "2.6"],
    "lint an option string": ["lint", "--conf", "garbage_collection_threshold:0.5"],
    "stats": ["stats", FAILED],
    "stats of requests alone": ["stats", "traces/profiled/timeline-torch2.15.json.xz"],
    "lint of requests alone": ["lint", "traces/profiled/trace-torch2.15.json.xz"],
    "replay of requests alone": ["replay", "traces/profiled/trace-torch2.15.json.xz"],
    "explain a table": ["explain", "traces/profiled/summary-torch2.15.txt"],
}
"""A line of each command, and of each kind of document; others are in `made`."""


def subschemas(schema: object) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        if "$ref" in schema or "type" in schema or "enum" in schema or "anyOf" in schema:
            yield schema
        for value in schema.values():
            yield from subschemas(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from subschemas(value)


def with_json() -> set[str]:
    """Return the commands that have --json."""
    return {
        name
        for name, parser in commands().items()
        if any("--json" in action.option_strings for action in parser._actions)
    }


# -- the schemas --------------------------------------------------------------------------


def test_schemas_cover_every_command_with_json() -> None:
    assert set(schemas()) == with_json() | {SHARED}


@pytest.mark.parametrize("name", schemas())
def test_schema_is_valid_for_its_draft(name: str) -> None:
    schema = schemas()[name]
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    Draft202012Validator.check_schema(schema)
    assert name == SHARED or schema["title"] == f"allocsim {name} --json"


@pytest.mark.parametrize("name", schemas())
def test_schema_objects_are_closed_and_described(name: str) -> None:
    """Open objects are parts of closed ones, which include them by `allOf`."""
    text = "".join(json.dumps(schema) for schema in schemas().values())
    parts = set(re.findall(r'"allOf": \[((?:\{"\$ref": "[^"]*"\}(?:, )?)+)\]', text))
    open_ones = {
        each.rsplit("/", 1)[1] for refs in parts for each in re.findall(r': "([^"]*/[^"]*)"', refs)
    }
    assert open_ones
    for schema in subschemas(schemas()[name]):
        if "properties" not in schema and "allOf" not in schema:
            continue
        assert schema["description"]
        named = [key for key, each in schemas()[name].get("$defs", {}).items() if each is schema]
        if not set(named) & open_ones:
            assert schema.get("additionalProperties", schema.get("unevaluatedProperties")) is False
        for key in schema.get("required", ()):
            assert key in schema["properties"], key


@pytest.mark.parametrize("name", schemas())
def test_schema_keys_are_described(name: str) -> None:
    for schema in subschemas(schemas()[name]):
        for key, value in schema.get("properties", {}).items():
            assert "description" in value or "$ref" in value, (name, key)
            if value.get("type") in ("integer", "number") and not key.endswith("_bytes"):
                assert value["description"].endswith((".", ")")), (name, key)


@pytest.mark.parametrize("name", schemas())
def test_schema_of_a_size_difference_names_bytes(name: str) -> None:
    for schema in subschemas(schemas()[name]):
        for key, value in schema.get("properties", {}).items():
            if key.endswith("_bytes") and value.get("type") == "integer":
                assert "ytes" in value["description"], (name, key)  # a difference


def test_schema_words_equal_those_of_the_code() -> None:
    causes = schemas()[SHARED]["$defs"]["cause"]["enum"]
    assert set(causes) == {*MESSAGE_CAUSES, "pending_free", "private_pool"}
    findings = schema_of("lint")["properties"]["findings"]
    assert findings["items"]["properties"]["check"]["enum"] == list(CHECKS)
    kinds = schemas()[SHARED]["$defs"]["kinds"]["properties"]
    answer = {kind: each["description"].lower().rstrip(".") for kind, each in kinds.items()}
    assert answer == {kind: text.lower() for kind, text in KINDS.items()}


def test_documents_keep_every_recorded_key() -> None:
    """docs/reference/versioning.md: only a release that raises `SCHEMA_VERSION` removes a key."""
    recorded = set(RECORDED.read_text().split())
    assert recorded - keys() == set()
    assert keys() - recorded == set(), "new keys: python -m tests.schemas records them"


def test_documents_begin_with_the_schema_version() -> None:
    version = schemas()[SHARED]["$defs"]["schema_version"]
    assert version["const"] == SCHEMA_VERSION
    for name in with_json():
        assert {f"{name}.schema_version", f"{name}[].schema_version"} & keys(), name
    assert list(cast(Any, versioned({"a": 1}))) == ["schema_version", "a"]


def test_formats_page_links_every_schema() -> None:
    page = (ROOT / "docs" / "reference" / "formats.md").read_text()
    section = page.partition("## JSON output")[2]
    linked = set(re.findall(r"\(\.\./schemas/(\w+)\.json\)", section))
    assert linked == set(schemas())


# -- the documents -------------------------------------------------------------------------


@pytest.fixture
def printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[[list[str]], list[Any]]:
    """Return a function that runs a line with --json and returns its documents."""
    monkeypatch.chdir(ROOT)

    def run(line: list[str]) -> list[Any]:
        capsys.readouterr()
        assert main([*line, "--json"]) in (0, 1, 3)
        out = capsys.readouterr().out
        if line[0] == "watch":
            return [json.loads(each) for each in out.splitlines()]
        return [json.loads(out)]

    return run


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_command_output_matches_its_schema(
    line: list[str], printed: Callable[[list[str]], list[Any]]
) -> None:
    for document in printed(line):
        assert wrong_with(line[0], document) == ""


def made() -> dict[str, list[Any]]:
    """Return documents of commands that need PyTorch or a driver, made without them."""
    program = RecordedProgram(("python", "train.py"), Path("run.pickle"), find_gpu("RTX 4090"))
    ended = ProcessRecording(Path("run.pickle"), 12, "CUDA out of memory.", "")
    script = Script([["a", 0, 512, 0]], 64 * MIB)
    divergence = Divergence("2.15", script, Difference("addresses", 0, 1, 2), [2])
    same = Report(seeds={"2.15": (1, 3)})
    gpu = CachingAllocator("1GiB", record_history=True)
    return {
        "record": [record_document(program, Recorded(1, (ended,), None))],
        "crosscheck": [
            crosscheck_document(same, "the compiled allocator"),
            crosscheck_document(Report(seeds=same.seeds, divergence=divergence), "the same"),
        ],
        "step": [[step_document(step(gpu, Request("malloc", size=3 * MIB, stream=0)))]],
    }


@pytest.mark.parametrize("conf", [[], ["--conf", "max_split_size_mb:64"]])
def test_convert_output_matches_its_schema(
    conf: list[str], printed: Callable[[list[str]], list[Any]], tmp_path: Path
) -> None:
    (document,) = printed(["convert", TRACE, str(tmp_path / "rows.csv"), *conf])
    assert wrong_with("convert", document) == ""


@pytest.mark.parametrize("command", ["record", "crosscheck", "step"])
def test_documents_that_need_a_driver_match_their_schemas(command: str) -> None:
    for document in made()[command]:
        printed = json.loads(json.dumps(versioned(document)))
        assert wrong_with(command, printed) == ""


def test_documents_of_every_command_are_checked() -> None:
    # tests/cli checks other documents (a gate with a baseline, several devices, searches).
    assert {line[0] for line in LINES.values()} | {*made(), "convert"} == with_json()


OF_NAMES = ("stats", "categories", "owners", "moved", "actions", "rows", "counts")
"""Maps from names in the data, with arbitrary keys."""


def keyed(document: Any) -> Iterator[Any]:
    """Yield the objects of a document whose keys the schema names."""
    if isinstance(document, dict):
        yield document
        for key, value in document.items():
            if key not in OF_NAMES or not isinstance(value, dict):
                yield from keyed(value)
    elif isinstance(document, list):
        for each in document[:1]:
            yield from keyed(each)


@pytest.mark.parametrize("name", ["replay", "explain a recording", "top", "gate", "lint", "stats"])
def test_schema_refuses_an_unknown_key_at_any_depth(
    name: str, printed: Callable[[list[str]], list[Any]]
) -> None:
    line = LINES[name]
    (document,) = printed(line)
    for number, _ in enumerate(keyed(document)):
        changed = deepcopy(document)
        list(keyed(changed))[number]["brand_new"] = 1
        assert wrong_with(line[0], changed), f"the object {list(keyed(document))[number]}"
    for key in document:
        assert wrong_with(line[0], {k: v for k, v in document.items() if k != key}), key


def test_stats_actions_are_those_of_recordings(
    printed: Callable[[list[str]], list[Any]],
) -> None:
    (document,) = printed(LINES["stats"])
    assert set(document["devices"][0]["actions"]) <= {action.text for action in Action}


@pytest.mark.parametrize("name", schemas())
def test_schema_references_resolve(name: str) -> None:
    for file, key in re.findall(
        r'"\$ref": "([^"#]*)#/\$defs/(\w+)"', (FOLDER / f"{name}.json").read_text()
    ):
        assert key in schemas()[file.removesuffix(".json") or name]["$defs"]


@pytest.mark.parametrize("name", schemas())
def test_schemas_have_no_unused_definition(name: str) -> None:
    texts = "".join(path.read_text() for path in FOLDER.glob("*.json"))
    for key in schemas()[name].get("$defs", {}):
        assert f'#/$defs/{key}"' in texts
