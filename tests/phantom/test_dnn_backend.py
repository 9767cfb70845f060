"""cuDNN's graph interface: descriptors that a program fills, and plans."""

from __future__ import annotations

import ctypes

import pytest

from allocsim.phantom import Stubs
from tests.phantom.dnn import (
    BAD_PARAM,
    CONFIG,
    ENGINE,
    IS_DESCRIPTOR,
    IS_INT64,
    MATMUL,
    NOT_FINALIZED,
    NOT_SUPPORTED,
    RESAMPLE,
    SUCCESS,
    TENSOR,
    Backend,
)

QUERIES, KEYS = (2, 8, 512, 64), (2, 8, 300, 64)


@pytest.fixture
def backend(libraries: Stubs) -> Backend:
    return Backend(libraries)


def test_dnn_descriptor_returns_its_attributes(backend: Backend) -> None:
    tensor = backend.tensor(7, (2, 8, 512, 64))
    assert backend.get(tensor, 902) == (SUCCESS, (2, 8, 512, 64))
    assert backend.get(tensor, 903, most=2) == (SUCCESS, (8 * 512 * 64, 512 * 64))
    assert backend.get(tensor, 906) == (SUCCESS, (7,))
    assert backend.get(tensor, 904) == (SUCCESS, ())


def test_dnn_descriptor_is_written_before_and_read_after_finalize(backend: Backend) -> None:
    tensor = backend.create(TENSOR)
    assert backend.set(tensor, 906, IS_INT64, [1]) == SUCCESS
    assert backend.get(tensor, 906)[0] == NOT_FINALIZED
    assert backend.set(tensor, 906, IS_INT64, [2]) == SUCCESS
    assert backend.finalize(tensor) == SUCCESS
    assert backend.set(tensor, 906, IS_INT64, [3]) == BAD_PARAM
    assert backend.get(tensor, 906) == (SUCCESS, (2,))


def test_dnn_attribute_is_not_read_as_another_type(backend: Backend) -> None:
    tensor = backend.tensor(7, (2, 8, 512, 64))
    assert backend.get(tensor, 901)[0] == BAD_PARAM


def test_dnn_plan_keeps_its_descriptors(backend: Backend) -> None:
    graph = backend.attention(QUERIES, KEYS)
    plan = backend.plan(graph)
    backend.destroy(graph)
    assert backend.get(plan, 402) == (SUCCESS, (256,))
    backend.destroy(plan)


def test_dnn_engine_has_its_number_and_no_notes(backend: Backend) -> None:
    graph = backend.attention(QUERIES, KEYS)
    _, heuristics = backend.heuristics(graph)
    config, engine = backend.create(CONFIG), backend.create(ENGINE)
    backend.get_into(heuristics, 202, config)
    assert backend.get_into(config, 300, engine) == 1
    assert backend.get(engine, 1301) == (SUCCESS, (0,))
    assert backend.get(engine, 1303) == (SUCCESS, ())
    backend.destroy(engine, config, heuristics, graph)


def test_dnn_graph_without_a_law_has_no_plan(backend: Backend) -> None:
    resampled = backend.graph((RESAMPLE, {1710: (1, 3, 224, 224)}))
    assert backend.heuristics(resampled)[0] == NOT_SUPPORTED
    one_product = backend.graph((MATMUL, {1520: QUERIES}))
    assert backend.heuristics(one_product)[0] == NOT_SUPPORTED


def test_dnn_engine_is_found_by_its_number(backend: Backend) -> None:
    """PyTorch 2.15 does this on a B200 for heads with 256 values."""
    graph, engine, config = backend.attention(QUERIES, KEYS), *map(backend.create, (ENGINE, CONFIG))
    status, (n_engines,) = backend.get(graph, 802)
    assert status == SUCCESS
    assert backend.set(engine, 1300, IS_DESCRIPTOR, [graph]) == SUCCESS
    assert backend.set(engine, 1301, IS_INT64, [n_engines - 1]) == SUCCESS
    assert backend.finalize(engine) == SUCCESS
    assert backend.set(config, 300, IS_DESCRIPTOR, [engine]) == SUCCESS
    assert backend.finalize(config) == SUCCESS
    assert backend.get(config, 303) == (SUCCESS, (256,))


def test_running_a_dnn_plan_is_work_of_the_stream(backend: Backend) -> None:
    device, stream, other = backend.device, 0x7000, 0x8000
    device.reset(1 << 30)
    handle, found = ctypes.c_void_p(), ctypes.c_void_p()
    assert backend.dnn.cudnnCreate(ctypes.byref(handle)) == SUCCESS
    assert backend.dnn.cudnnSetStream(handle, ctypes.c_void_p(stream)) == SUCCESS
    assert backend.dnn.cudnnGetStream(handle, ctypes.byref(found)) == SUCCESS
    assert found.value == stream
    submitted = [device.submitted(each) for each in (stream, other)]
    assert backend.dnn.cudnnBackendExecute(handle, None, None) == SUCCESS
    assert [device.submitted(each) for each in (stream, other)] == [submitted[0] + 1, submitted[1]]
    assert backend.dnn.cudnnDestroy(handle) == SUCCESS
