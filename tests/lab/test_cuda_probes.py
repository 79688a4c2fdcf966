"""What the child side does on CUDA, against a double of torch.cuda. The same questions are put to a
real device by tests/gpu."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.autograd import DeviceType  # noqa: E402

from celedger.child import torch as training_loop  # noqa: E402
from celedger.lab.probes import observe  # noqa: E402
from celedger.lab.probes.operators import DeviceRange, device_work, read_events  # noqa: E402
from celedger.lab.probes.stack import Lines  # noqa: E402
from celedger.lab.probes.tensors import sums  # noqa: E402
from celedger.lab.probes.waits import DeviceWaits  # noqa: E402

WAITED = "called a synchronizing CUDA operation"


class CudaDouble:
    """The calls of torch.cuda that must not happen, and the answers of those that may."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.mode: Any = 0
        self.capturing = False
        self.synchronised = 0
        for name, value in {
            "is_initialized": lambda: True,
            "is_current_stream_capturing": lambda: self.capturing,
            "get_sync_debug_mode": lambda: self.mode,
            "set_sync_debug_mode": lambda mode: setattr(self, "mode", mode),
            "synchronize": self.synchronize,
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)

    def synchronize(self, *_: object) -> None:
        self.synchronised += 1

    def operator(self) -> None:
        """Wait for the device, as `nonzero` does: torch warns at the caller's line."""
        if self.mode == "warn":
            warnings.warn(WAITED, stacklevel=1)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> CudaDouble:
    return CudaDouble(monkeypatch)


@pytest.fixture
def waits(cuda: CudaDouble) -> Iterator[DeviceWaits]:
    counted = DeviceWaits(Lines())
    counted.watch()
    yield counted
    counted.leave()


def test_waits_are_those_that_torch_reports_and_explicit_ones(
    cuda: CudaDouble, waits: DeviceWaits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`.to("cpu")`, masks and `cuda.synchronize` were missed, `.item()` of a CPU tensor counted."""
    tensor = torch.ones(3)
    tensor.sum().item()  # on the CPU: no wait
    for _ in range(2):
        cuda.operator()
    torch.cuda.synchronize()
    counts = {method: times for (method, _), times in waits.counts.items()}
    assert counts == {"(operator)": 2, "synchronize": 1}
    assert cuda.synchronised == 1
    files = {waits._lines.table[line][0] for _, line in waits.counts}
    assert files == {__file__}


def test_a_wait_within_a_method_has_its_name(cuda: CudaDouble) -> None:
    class Table:
        nonzero = to = item = cpu = lambda self: cuda.operator()

    counted = DeviceWaits(Lines())
    try:
        counted.watch()
        for name in ("nonzero", "to"):
            counted._replace(Table, name, counted._called)
            getattr(Table(), name)()
    finally:
        counted.leave()
    assert sorted(method for method, _ in counted.counts) == ["nonzero", "to"]


def test_leaving_restores_torch_and_other_warnings_go_their_way(cuda: CudaDouble) -> None:
    before, filters = dict(torch.Tensor.__dict__), warnings.filters[:]
    counted = DeviceWaits(Lines())
    with pytest.warns(UserWarning, match="of the user's own"):
        counted.watch()
        warnings.warn("of the user's own", stacklevel=1)
        counted.leave()
    assert dict(torch.Tensor.__dict__) == before
    assert (cuda.mode, warnings.filters[:]) == (0, filters)
    assert counted.counts == {}


def test_no_probe_runs_while_a_graph_is_captured(
    cuda: CudaDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read value ends the capture with an error, and a captured event has no time."""
    calls: list[str] = []
    monkeypatch.setattr(observe, "_observer", SimpleNamespace(off=False, busy=False))
    for cuda.capturing in (False, True, False):
        observe.guarded(calls.append, "call")
    assert calls == ["call"] * 2


def test_a_probe_that_measures_time_reads_no_flag_of_a_fused_optimiser() -> None:
    class Flag:
        def __bool__(self) -> bool:
            raise AssertionError("it waits for the device")

    ended: list[bool] = []
    for reads in (False, True):
        probe = SimpleNamespace(
            reads_values=reads, wants=lambda step: False,
            step_ends=lambda step, optimiser, skipped: ended.append(skipped),
        )  # fmt: skip
        observer = observe.Observer(probe)  # type: ignore[arg-type]
        flag: Any = True if reads else Flag()
        observer._end_step(SimpleNamespace(found_inf=flag))  # type: ignore[arg-type]
    assert ended == [False, True]


def test_an_epoch_of_the_training_loop_waits_only_where_its_values_are_read(
    cuda: CudaDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It synchronised at the start of each epoch, and before the evaluation."""
    order: list[str] = []

    class Moment:
        def __init__(self, *, enable_timing: bool) -> None: ...
        def record(self) -> None:
            order.append("event")

        def synchronize(self) -> None:
            order.append("wait")

        def elapsed_time(self, end: object) -> float:
            return 500.0

    def moment(_: object) -> Moment:
        made = Moment(enable_timing=True)
        made.record()
        return made

    def evaluate(model: object) -> dict[str, Any]:
        order.append("evaluate")
        return {"val_loss": torch.zeros(())}

    reported: dict[str, Any] = {}
    monkeypatch.setattr(training_loop, "_moment", moment)
    monkeypatch.setattr(training_loop, "log", lambda **values: reported.update(values))
    training_loop.train(
        model=lambda: torch.nn.Linear(1, 1),
        optimiser=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        data=lambda: [torch.ones(2, 1)] * 3,
        loss=lambda model, x: model(x).square().mean(),
        evaluate=evaluate, epochs=1,
    )  # fmt: skip
    assert order == ["event"] * 5 + ["evaluate", "event", "wait", "wait"]
    assert cuda.synchronised == 0
    assert (reported["evaluation_time"], reported["step_time_p50"]) == (0.5, 0.5)


def test_memory_of_a_gpu_and_of_its_host_are_figures_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = {
        "mem_get_info": (70, 80), "max_memory_allocated": 3, "max_memory_reserved": 6,
        "memory_stats": {"inactive_split_bytes.all.peak": 2},
    }  # fmt: skip
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, lambda _, answer=answer: answer)
    figures = training_loop.peak_memory(torch.device("cuda"))
    host = figures.pop("peak_host_memory")
    assert figures == {
        "peak_memory": 3, "peak_memory_reserved": 6, "peak_memory_fragmented": 2,
        "device_memory_used": 10,
    }  # fmt: skip
    assert set(training_loop.peak_memory(torch.device("cpu"))) == {"peak_memory"}
    assert host > 1e6


def test_the_device_s_work_counts_once_where_kernels_and_copies_overlap() -> None:
    work = [
        DeviceRange("ampere_sgemm_128x64_tn", 0, 40),
        DeviceRange("void at::native::vectorized_elementwise_kernel", 30, 50),
        DeviceRange("Memcpy HtoD (Pageable -> Device)", 40, 70),
        DeviceRange("Memcpy HtoD (Pinned -> Device)", 80, 90),
        DeviceRange("sm80_xmma_gemm_f32f32_tf32f32_f32_tn", 190, 230),  # the window ends within
    ]
    found = device_work(work, (0, 200), 2)
    assert found == pytest.approx({"busy": 45e-9, "pageable_copies": 15e-9})


class Recorded:
    """An event as torch's profiler gives it."""

    def __init__(self, name: str, start: int, end: int, number: int = 0, **more: Any) -> None:
        own = {"name": name, "start_ns": start, "end_ns": end, "correlation_id": number}
        more = {"thread": 1, "linked": 0, "kind": DeviceType.CPU, "nbytes": 0, **more}
        own |= {"start_thread_id": more["thread"], "end_thread_id": more["thread"]}
        own |= {"linked_correlation_id": more["linked"], "device_type": more["kind"]}
        self._own = own | {"nbytes": more["nbytes"], "sequence_nr": -1}

    def __getattr__(self, name: str) -> Any:
        return lambda: self._own[name]


def test_kernels_and_memory_belong_to_the_innermost_operator_that_asked_for_them() -> None:
    gpu = DeviceType.CUDA
    host, device = read_events([
        Recorded("aten::mm", 10, 90, number=7),
        Recorded("gemm", 100, 140, linked=7, kind=gpu),
        Recorded("celedger module fc", 0, 100, number=6),
        Recorded("aten::empty", 12, 20, number=8),
        Recorded("[memory]", 15, 15, nbytes=512),
        Recorded("[memory]", 15, 15, nbytes=64, thread=3),  # of another thread
        Recorded("cudaLaunchKernel", 60, 70, linked=7, thread=2),  # as the driver names it
        Recorded("celedger module fc", 100, 140, kind=gpu),  # a range that is repeated there
    ])  # fmt: skip
    seen = {one.name: (one.spent, one.memory, one.kernels, one.module) for one in host}
    assert seen == {
        "celedger module fc": (20, 0, 0, "fc"), "aten::mm": (62, 0, 1, "fc"),
        "aten::empty": (8, 512, 0, "fc"), "cudaLaunchKernel": (10, 0, 0, "fc"),
    }  # fmt: skip
    assert device == [DeviceRange("gemm", 100, 140)]
    assert [one.device for one in host if one.kernels] == [pytest.approx(40e-9)]


@pytest.mark.parametrize(
    "kind",
    [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.complex64],
)
def test_the_sums_of_a_tensor_tell_one_bit_and_one_place(kind: Any) -> None:
    draw = torch.Generator().manual_seed(0)
    tensor = torch.randn(300, 70, generator=draw).mul(50).to(kind)
    other, moved = tensor.clone(), tensor.roll(1)
    other.view(torch.uint8)[150, 3] ^= 1
    assert sums(tensor) == sums(tensor.clone()) == sums(tensor.T.contiguous().T)
    assert len({sums(each) for each in (tensor, other, moved)}) == 3


def test_sums_of_a_tensor_of_several_parts_have_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celedger.lab.probes.tensors._PART", 100)
    tensor = torch.arange(1050.0)
    swapped = torch.cat([tensor[100:200], tensor[:100], tensor[200:]])
    assert len(sums(tensor)) == 8 * 11
    assert len({sums(each) for each in (tensor, swapped, tensor + (tensor == 1049))}) == 3


def test_what_compares_two_runs_takes_algorithms_that_repeat(
    cuda: CudaDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[tuple[bool, bool]] = []
    monkeypatch.setattr(
        torch, "use_deterministic_algorithms",
        lambda mode, *, warn_only: said.append((mode, warn_only)),
    )  # fmt: skip
    fill: list[bool] = []
    monkeypatch.setattr(torch._C, "_set_deterministic_fill_uninitialized_memory", fill.append)
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: False)
    observe.choose_repeatable()
    assert (said, fill) == ([(True, True)], [False])
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    observe.choose_repeatable()  # the script's own choice stays
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    observe.choose_repeatable()
    assert len(said) == 1
