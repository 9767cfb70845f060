"""cuDNN's graph interface: descriptors that a program fills, and the plans made of them.

The numbers are those of NVIDIA's cudnn_graph.h; the descriptors are filled as PyTorch fills them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import pytest

from allocsim.phantom import Stubs
from tests.phantom.test_stub import Device

SUCCESS, BAD_PARAM, NOT_FINALIZED, NOT_SUPPORTED = 0, 2000, 2004, 3000
ENGINE, CONFIG, HEURISTICS, PLAN, RESAMPLE, GRAPH, TENSOR, MATMUL = 2, 3, 4, 5, 25, 15, 17, 19
SDPA_FORWARD = 41
IS_DATA_TYPE, IS_INT64, IS_DESCRIPTOR = 1, 3, 15
BFLOAT16 = 9
SHAPE = {"q": (2, 8, 512, 64), "k": (2, 8, 300, 64)}


class Backend:
    """The functions of the graph interface, with arrays in place of pointers."""

    def __init__(self, stubs: Stubs) -> None:
        self.device = Device(stubs)
        self.dnn = ctypes.CDLL(str(stubs.dnn))

    def create(self, kind: int) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        assert self.dnn.cudnnBackendCreateDescriptor(kind, ctypes.byref(made)) == SUCCESS
        return made

    def set(
        self, descriptor: ctypes.c_void_p, name: int, kind: int, values: Sequence[object]
    ) -> int:
        of = {IS_DATA_TYPE: ctypes.c_int, IS_INT64: ctypes.c_int64, IS_DESCRIPTOR: ctypes.c_void_p}
        array = (of[kind] * len(values))(*values)
        n = ctypes.c_int64(len(values))
        return int(self.dnn.cudnnBackendSetAttribute(descriptor, name, kind, n, array))

    def get(
        self, descriptor: ctypes.c_void_p, name: int, most: int = 8
    ) -> tuple[int, tuple[int, ...]]:
        """The status, and the int64 values of an attribute."""
        array, n = (ctypes.c_int64 * most)(), ctypes.c_int64()
        status = self.dnn.cudnnBackendGetAttribute(
            descriptor, name, IS_INT64, ctypes.c_int64(most), ctypes.byref(n), array
        )
        return status, tuple(array[: min(n.value, most)])

    def get_into(self, descriptor: ctypes.c_void_p, name: int, out: ctypes.c_void_p) -> int:
        """Read the first descriptor of an attribute into `out`; the number there are."""
        array, n = (ctypes.c_void_p * 1)(out), ctypes.c_int64()
        status = self.dnn.cudnnBackendGetAttribute(
            descriptor, name, IS_DESCRIPTOR, ctypes.c_int64(1), ctypes.byref(n), array
        )
        assert status == SUCCESS
        return n.value

    def finalize(self, descriptor: ctypes.c_void_p) -> int:
        return int(self.dnn.cudnnBackendFinalize(descriptor))

    def destroy(self, *descriptors: ctypes.c_void_p) -> None:
        for descriptor in descriptors:
            assert self.dnn.cudnnBackendDestroyDescriptor(descriptor) == SUCCESS

    def tensor(self, uid: int, sizes: Sequence[int]) -> ctypes.c_void_p:
        made = self.create(TENSOR)
        strides = [1] * len(sizes)
        for i in reversed(range(len(sizes) - 1)):
            strides[i] = strides[i + 1] * sizes[i + 1]
        assert self.set(made, 901, IS_DATA_TYPE, [BFLOAT16]) == SUCCESS
        assert self.set(made, 902, IS_INT64, sizes) == SUCCESS
        assert self.set(made, 903, IS_INT64, strides) == SUCCESS
        assert self.set(made, 906, IS_INT64, [uid]) == SUCCESS
        assert self.finalize(made) == SUCCESS
        return made

    def graph(self, kind: int, tensors: dict[int, ctypes.c_void_p]) -> ctypes.c_void_p:
        """A graph of one operation over tensors by attribute; it alone keeps both."""
        operation, made = self.create(kind), self.create(GRAPH)
        for name, tensor in tensors.items():
            assert self.set(operation, name, IS_DESCRIPTOR, [tensor]) == SUCCESS
        assert self.finalize(operation) == SUCCESS
        assert self.set(made, 801, IS_DESCRIPTOR, [operation]) == SUCCESS
        assert self.finalize(made) == SUCCESS
        self.destroy(operation, *tensors.values())
        return made

    def attention(self) -> ctypes.c_void_p:
        """Scaled dot product attention as one operation."""
        q, k, v = SHAPE["q"], SHAPE["k"], SHAPE["k"]
        tensors = [self.tensor(uid, sizes) for uid, sizes in enumerate((q, k, v, q))]
        return self.graph(SDPA_FORWARD, dict(enumerate(tensors, start=2800)))

    def heuristics(self, graph: ctypes.c_void_p) -> tuple[int, ctypes.c_void_p]:
        """The status of finalizing heuristics of a graph, and the heuristics."""
        made = self.create(HEURISTICS)
        assert self.set(made, 201, IS_DESCRIPTOR, [graph]) == SUCCESS
        return self.finalize(made), made

    def plan(self, graph: ctypes.c_void_p) -> ctypes.c_void_p:
        """A plan of the first configuration that the heuristics have."""
        status, heuristics = self.heuristics(graph)
        config, made = self.create(CONFIG), self.create(PLAN)
        assert (status, self.get_into(heuristics, 202, config)) == (SUCCESS, 1)
        assert self.set(made, 401, IS_DESCRIPTOR, [config]) == SUCCESS
        assert self.finalize(made) == SUCCESS
        self.destroy(heuristics, config)
        return made


@pytest.fixture
def backend(libraries: Stubs) -> Backend:
    return Backend(libraries)


def test_a_descriptor_returns_what_was_set(backend: Backend) -> None:
    tensor = backend.tensor(7, (2, 8, 512, 64))
    assert backend.get(tensor, 902) == (SUCCESS, (2, 8, 512, 64))
    assert backend.get(tensor, 903, most=2) == (SUCCESS, (8 * 512 * 64, 512 * 64))
    assert backend.get(tensor, 906) == (SUCCESS, (7,))
    assert backend.get(tensor, 904) == (SUCCESS, ())


def test_a_descriptor_is_written_before_and_read_after_it_is_finalized(backend: Backend) -> None:
    tensor = backend.create(TENSOR)
    assert backend.set(tensor, 906, IS_INT64, [1]) == SUCCESS
    assert backend.get(tensor, 906)[0] == NOT_FINALIZED
    assert backend.set(tensor, 906, IS_INT64, [2]) == SUCCESS
    assert backend.finalize(tensor) == SUCCESS
    assert backend.set(tensor, 906, IS_INT64, [3]) == BAD_PARAM
    assert backend.get(tensor, 906) == (SUCCESS, (2,))


def test_an_attribute_is_not_read_as_another_type(backend: Backend) -> None:
    tensor = backend.tensor(7, (2, 8, 512, 64))
    assert backend.get(tensor, 901)[0] == BAD_PARAM


def test_a_plan_keeps_what_it_was_made_of(backend: Backend) -> None:
    graph = backend.attention()
    plan = backend.plan(graph)
    backend.destroy(graph)
    assert backend.get(plan, 402) == (SUCCESS, (256,))
    backend.destroy(plan)


def test_an_engine_tells_its_number_and_no_notes(backend: Backend) -> None:
    graph = backend.attention()
    _, heuristics = backend.heuristics(graph)
    config, engine = backend.create(CONFIG), backend.create(ENGINE)
    backend.get_into(heuristics, 202, config)
    assert backend.get_into(config, 300, engine) == 1
    assert backend.get(engine, 1301) == (SUCCESS, (0,))
    assert backend.get(engine, 1303) == (SUCCESS, ())
    backend.destroy(engine, config, heuristics, graph)


def test_a_graph_that_no_law_knows_has_no_plan(backend: Backend) -> None:
    image = backend.tensor(1, (1, 3, 224, 224))
    status, _ = backend.heuristics(backend.graph(RESAMPLE, {1710: image}))
    assert status == NOT_SUPPORTED
    one_product = backend.graph(MATMUL, {1520: backend.tensor(1, SHAPE["q"])})
    assert backend.heuristics(one_product)[0] == NOT_SUPPORTED


def test_running_a_plan_is_work_for_the_stream_of_the_handle(backend: Backend) -> None:
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
