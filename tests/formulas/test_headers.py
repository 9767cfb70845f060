"""Headers of model files: valid ones are read, and invalid ones are refused in a sentence."""

from __future__ import annotations

import json
import random
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from allocsim.errors import RecordingError
from allocsim.fitting.formulas import gguf_sizes, read_gguf, read_safetensors
from tests.formulas.files import gguf_bytes, safetensors_bytes, small_gguf, small_safetensors

Read = Callable[[Path], object]
MOST_MEMORY = 64 << 20


def saved(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def test_a_safetensors_header_says_names_types_shapes_and_bytes(tmp_path: Path) -> None:
    tensors = read_safetensors(saved(tmp_path, "m.safetensors", small_safetensors()))
    assert [(each.kind, each.dims, each.size) for each in tensors] == [
        ("BF16", (64, 8), 1024),
        ("F8_E4M3", (16, 8), 128),
        ("F32", (8,), 32),
    ]


def test_a_folder_of_shards_is_read_by_its_index(tmp_path: Path) -> None:
    one = {"a": {"dtype": "F16", "shape": [4], "data_offsets": [0, 8]}}
    two = {"b": {"dtype": "F16", "shape": [8], "data_offsets": [0, 16]}}
    saved(tmp_path, "model-1.safetensors", safetensors_bytes(one, 8))
    saved(tmp_path, "model-2.safetensors", safetensors_bytes(two, 16))
    saved(tmp_path, "other.safetensors", small_safetensors())
    assert len(read_safetensors(tmp_path)) == 5
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    saved(tmp_path, "model.safetensors.index.json", json.dumps(index).encode())
    assert [each.name for each in read_safetensors(tmp_path)] == ["a", "b"]


@pytest.mark.parametrize(
    ("index", "said"),
    [
        ({"weight_map": {"a": "../secret"}}, "not a file beside the index"),
        ({"weight_map": {"a": 3}}, "weight_map is not possible"),
        ({"weight_map": []}, "no weight_map"),
        ([], "not a JSON object"),
    ],
)
def test_an_index_that_names_no_files_beside_it_is_refused(
    tmp_path: Path, index: Any, said: str
) -> None:
    saved(tmp_path, "model.safetensors.index.json", json.dumps(index).encode())
    with pytest.raises(RecordingError, match=said):
        read_safetensors(tmp_path)


ROW = {"dtype": "F16", "shape": [4], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "a header of 0 bytes"),
        (struct.pack("<Q", 1 << 62) + b"{}", "expected 2 to 2"),
        (struct.pack("<Q", 2) + b"{\xff", "not JSON"),
        (struct.pack("<Q", 200_000) + b"[" * 200_000, "not JSON"),
        (struct.pack("<Q", 2) + b"[]", "not a JSON object"),
        (struct.pack("<Q", 17) + b'{"a": 1, "a": 2} ', "a name occurs twice"),
        (safetensors_bytes({"a": {**ROW, "dtype": "Q4"}}, 8), "dtype 'Q4'; expected one of"),
        (safetensors_bytes({"a": {**ROW, "dtype": []}}, 8), "dtype"),
        (safetensors_bytes({"a": {**ROW, "shape": [-4]}}, 8), "shape"),
        (safetensors_bytes({"a": {**ROW, "shape": [1 << 47, 1 << 47]}}, 8), "expected .* bytes"),
        (safetensors_bytes({"a": {**ROW, "shape": [True]}}, 8), "shape"),
        (safetensors_bytes({"a": {**ROW, "data_offsets": [8, 16]}}, 16), "begins at byte 8"),
        (safetensors_bytes({"a": ROW, "b": ROW}, 16), "begins at byte 0; expected 8"),
        (safetensors_bytes({"a": ROW}, 9), "9 bytes of data"),
        (safetensors_bytes({"a": 3}, 0), "is not an object"),
    ],
)
def test_a_hostile_safetensors_header_is_refused(tmp_path: Path, data: bytes, said: str) -> None:
    with pytest.raises(RecordingError, match=said):
        read_safetensors(saved(tmp_path, "m.safetensors", data))


def test_a_gguf_header_says_what_the_model_is(tmp_path: Path) -> None:
    path = saved(tmp_path, "m.gguf", small_gguf())
    file = read_gguf(path)
    assert file.metadata["tokenizer.ggml.tokens"] == 3
    assert [(each.kind, each.dims) for each in file.tensors[1:]] == [
        ("Q4_K", (256, 256)),
        ("Q6_K", (256, 512)),
        ("F32", (256,)),
    ]
    sizes = gguf_sizes(path, file)
    assert (sizes.layers, sizes.kv_heads, sizes.head, sizes.vocabulary) == (1, 2, 64, 64)
    assert sizes.tied


def test_a_gguf_file_in_parts_is_read_from_any_of_them(tmp_path: Path) -> None:
    row = ("blk.1.attn_q.weight", 0, (32, 4), 512)
    saved(tmp_path, "m-00001-of-00002.gguf", small_gguf())
    second = saved(tmp_path, "m-00002-of-00002.gguf", gguf_bytes({}, [row]))
    file = read_gguf(second)
    assert file.metadata["llama.block_count"] == 1
    assert [each.name for each in file.tensors][-1] == "blk.1.attn_q.weight"
    second.unlink()
    with pytest.raises(RecordingError, match=r"of-00002\.gguf: cannot be read"):
        read_gguf(tmp_path / "m-00001-of-00002.gguf")


MODEL = {"general.architecture": "llama"}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"GGML" + bytes(20), "expected the letters GGUF"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1; expected 2 or 3"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), "tensors; expected"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 60), "keys of metadata; expected"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1 << 63) + bytes(8), "of key"),
        (
            b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"a" + struct.pack("<IIQ", 9, 4, 1 << 62),
            "values of an array",
        ),
        (
            b"GGUF"
            + struct.pack("<IQQQ", 3, 0, 1, 1)
            + b"a"
            + struct.pack("<I", 9)
            + struct.pack("<IQ", 9, 1) * 9
            + bytes(90),
            "arrays in arrays",
        ),
        (gguf_bytes(MODEL, [("a", 4, (32,), 32)]), "has type 4, which ggml does not define"),
        (gguf_bytes(MODEL, [("a", 12, (100,), 32)]), "has no rows of Q4_K"),
        (gguf_bytes(MODEL, [("a", 0, (1 << 40, 1 << 40), 32)]), "has no rows of F32"),
        (gguf_bytes(MODEL, [("a", 0, (32,), 128), ("a", 0, (32,), 128)]), "twice"),
        (gguf_bytes(MODEL, [("a", 0, (64,), 128)]), "within the file"),
        (gguf_bytes(MODEL, [("a", 0, (64,), 32), ("b", 0, (8,), 512)]), "from 256 on"),
        (gguf_bytes({"general.alignment": 7}, []), "general.alignment is 7"),
        (gguf_bytes(MODEL, [("a", 0, (1, 1, 1, 1, 1), 32)]), "5 dimensions"),
    ],
)
def test_a_hostile_gguf_header_is_refused(tmp_path: Path, data: bytes, said: str) -> None:
    with pytest.raises(RecordingError, match=said):
        read_gguf(saved(tmp_path, "m.gguf", data))


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ({}, "no general.architecture"),
        (MODEL, "llama.block_count is None"),
        (MODEL | {"llama.block_count": 5000}, "llama.block_count is 5000; expected 1 to 4,096"),
    ],
)
def test_a_gguf_file_without_sizes_is_no_model(
    tmp_path: Path, metadata: dict[str, Any], said: str
) -> None:
    path = saved(tmp_path, "m.gguf", gguf_bytes(metadata, []))
    with pytest.raises(RecordingError, match=said):
        gguf_sizes(path, read_gguf(path))


def test_a_folder_without_models_and_a_file_that_is_not_there_are_refused(tmp_path: Path) -> None:
    for read, name in ((read_safetensors, "."), (read_safetensors, "a"), (read_gguf, "a.gguf")):
        with pytest.raises(RecordingError):
            read(tmp_path / name)


def mutated(data: bytes, chance: random.Random) -> bytes:
    """Return the contents of a file with a few bytes, lengths or parts of its header changed."""
    out = bytearray(data)
    reach = min(len(out), 700)
    for _ in range(chance.choice((1, 1, 2, 5))):
        at = chance.randrange(reach)
        how = chance.randrange(5)
        if how == 0:
            out[at] = chance.randrange(256)
        elif how == 1:
            out[at : at + 8] = struct.pack("<Q", chance.choice((0, 1, 1 << 31, 1 << 63, 2**64 - 1)))
        elif how == 2:
            del out[at : at + chance.randrange(1, 40)]
        elif how == 3:
            out[at:at] = bytes(chance.choices(b'[]{}":,0123456789\x00\xff', k=chance.randrange(40)))
        else:
            out[at : at + 30] = out[chance.randrange(reach) :][:30]
        reach = max(min(len(out), 700), 1)
        out = out or bytearray(1)
    return bytes(out[: chance.randrange(1, len(out) + 1)] if chance.random() < 0.2 else out)


def survive(folder: Path, read: Read, data: bytes, count: int) -> int:
    """Read `count` changed files and return the number refused. Any other error ends the test."""
    chance, path, refused = random.Random(7), folder / "m", 0
    tracemalloc.start()
    try:
        for _ in range(count):
            path.write_bytes(mutated(data, chance))
            try:
                read(path)
            except RecordingError as error:
                refused += 1
                assert str(error).startswith(str(path))
                assert "\n" not in str(error)
        assert tracemalloc.get_traced_memory()[1] < MOST_MEMORY
    finally:
        tracemalloc.stop()
    return refused


def sized(path: Path) -> object:
    return gguf_sizes(path, read_gguf(path))


@pytest.mark.parametrize(
    ("read", "data"), [(read_safetensors, small_safetensors()), (sized, small_gguf())]
)
def test_changed_headers_never_end_in_another_error(
    tmp_path: Path, read: Read, data: bytes
) -> None:
    assert survive(tmp_path, read, data, 300) > 200


@pytest.mark.slow
@pytest.mark.parametrize(
    ("read", "data"), [(read_safetensors, small_safetensors()), (sized, small_gguf())]
)
def test_10_000_changed_headers_never_end_in_another_error(
    tmp_path: Path, read: Read, data: bytes
) -> None:
    assert survive(tmp_path, read, data, 10_000) > 7_000


def test_files_of_the_safetensors_package(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    package = pytest.importorskip("safetensors.numpy")
    path = tmp_path / "m.safetensors"
    arrays = {"a": numpy.zeros((3, 5), numpy.float16), "b": numpy.zeros(7, numpy.int64)}
    package.save_file(arrays, str(path), metadata={"format": "np"})
    found = {each.name: each for each in read_safetensors(path)}
    assert {name: each.dims for name, each in found.items()} == {"a": (3, 5), "b": (7,)}
    assert found["a"].size == 30
    assert found["b"].size == 56


def test_files_of_the_gguf_package(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    package = pytest.importorskip("gguf")
    path = tmp_path / "m.gguf"
    writer = package.GGUFWriter(str(path), "llama")
    writer.add_block_count(1)
    writer.add_embedding_length(32)
    writer.add_head_count(2)
    writer.add_token_list(["a", "b"])
    rows = numpy.zeros((64, 32), numpy.float32)
    quantised = package.quants.quantize(rows, package.GGMLQuantizationType.Q8_0)
    writer.add_tensor("token_embd.weight", quantised, raw_dtype=package.GGMLQuantizationType.Q8_0)
    writer.add_tensor("output_norm.weight", numpy.zeros(32, numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = read_gguf(path)
    sizes = [(each.kind, each.dims, each.size) for each in file.tensors]
    assert sizes == [("Q8_0", (64, 32), 64 * 34), ("F32", (32,), 128)]
    assert gguf_sizes(path, file).head == 16


def test_the_gguf_package_has_the_same_blocks() -> None:
    package = pytest.importorskip("gguf")
    from allocsim.fitting.formulas import BLOCKS, NUMBERS  # noqa: PLC0415

    theirs = {kind.name: package.GGML_QUANT_SIZES[kind] for kind in package.GGMLQuantizationType}
    for number, name in NUMBERS.items():
        assert package.GGMLQuantizationType(number).name == name
        if name != "Q8_1":  # ggml's has 32 bits for scale and sum, as in an older version
            assert theirs[name] == (BLOCKS[name].weights, BLOCKS[name].size)
