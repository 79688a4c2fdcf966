"""The communication of a distributed training in the profiler's events: gloo's as torch 2.13 writes
them, and NCCL's from a trace built by hand, in the form of Kineto's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from celedger.lab.diagnose.trace import rank_of, records
from celedger.lab.probes.communication import Communication, length
from celedger.trial import diagnostic
from celedger.trial.training_variables import child_copy

# On the stream 20 of NCCL: 100 µs beside a gemm, then 60 µs alone, then 40 µs beside a memset.
# "nccl:all_reduce" and "step" are the GPU's copies of ranges that the CPU has, too.
RECORDED = """[
{"ph":"X","cat":"user_annotation","name":"step","ts":1000,"dur":400},
{"ph":"X","cat":"user_annotation","name":"nccl:all_reduce","ts":1010,"dur":20},
{"ph":"X","cat":"cpu_op","name":"c10d::allreduce_","ts":1012,"dur":15},
{"ph":"X","cat":"cpu_op","name":"aten::mm","ts":1030,"dur":370},
{"ph":"X","cat":"gpu_user_annotation","name":"step","ts":1000,"dur":400,"args":{"stream":7}},
{"ph":"X","cat":"gpu_user_annotation","name":"nccl:all_reduce","ts":1100,"dur":200,
 "args":{"stream":20}},
{"ph":"X","cat":"kernel","name":"ampere_sgemm_128x64_tn","ts":1050,"dur":150,
 "args":{"stream":7}},
{"ph":"X","cat":"kernel","name":"NCCL","ts":1100,"dur":200,"args":{"stream":20}},
{"ph":"X","cat":"gpu_memset","name":"Memset (Device)","ts":1260,"dur":60,"args":{"stream":7}}
]"""


def event(name: str, start: float, end: float, **more: Any) -> Any:
    usual = {"is_async": False, "scope": 0, "cpu_parent": None, "device_type": "DeviceType.CPU"}
    span = SimpleNamespace(start=start, end=end)
    return SimpleNamespace(name=name, time_range=span, **{**usual, **more})


def collective(start: float, end: float) -> Any:
    return event("gloo:all_reduce", start, end, is_async=True, scope=7)


def recorded(kernel: str) -> list[Any]:
    return [
        event(
            row["name"], row["ts"], row["ts"] + row["dur"],
            scope=7 if "user_annotation" in row["cat"] else 0,
            device_type="DeviceType.CUDA" if "stream" in row.get("args", {}) else "DeviceType.CPU",
        )
        for row in json.loads(RECORDED.replace('"NCCL"', f'"{kernel}"'))
    ]  # fmt: skip


def test_a_gap_up_to_the_end_of_a_collective_is_waited_for() -> None:
    backward = event("user range", 0, 100, scope=7)
    node = event("autograd::engine::evaluate_function: AccumulateGrad", 10, 14)
    events = [
        backward, event("aten::mm", 0, 10), node,
        event("c10d::allreduce_", 12, 14, cpu_parent=node),
        collective(15, 60), event("aten::mm", 20, 40), event("aten::add", 62, 100),
    ]  # fmt: skip
    seen = Communication(events)
    assert (seen.running, seen.overlapped, seen.waited) == ([(15, 60)], [(20, 40)], [(40, 60)])
    assert length(seen.waited, 50, 100) == pytest.approx(10e-6)


def test_a_gap_in_which_no_collective_ends_is_python_s() -> None:
    seen = Communication([event("aten::mm", 0, 10), collective(5, 50), event("aten::mm", 30, 60)])
    assert seen.waited == []
    assert Communication([event("aten::mm", 0, 10), event("aten::mm", 30, 60)]).running == []


def test_an_operator_that_waits_for_a_collective_computes_nothing() -> None:
    """All-reduce as an autograd.Function, and the functional collectives' own wait."""
    outer = event("_AllReduce", 0, 50)
    inside = event("c10d::allreduce_", 1, 2, cpu_parent=outer)
    waiting = event("_c10d_functional::wait_tensor", 60, 90)
    seen = Communication([outer, inside, collective(2, 45), waiting, collective(60, 88)])
    assert seen.waited == seen.running == [(2, 45), (60, 88)]


@pytest.mark.parametrize(
    "kernel",
    ["ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
     "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)"],
)  # fmt: skip
def test_on_a_gpu_a_moment_with_collectives_alone_is_waited_for(kernel: str) -> None:
    seen = Communication(recorded(kernel))
    assert seen.on_device
    assert seen.running == [(1100, 1300)]
    assert seen.overlapped == [(1100, 1200), (1260, 1300)]
    assert seen.waited == [(1200, 1260)]


TRAINING = """\
import os, socket, sys, threading
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

def worker(rank, port):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=2)
    torch.set_num_threads(1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(20):
        if rank == 1:
            threading.Event().wait(0.02)
        loss = model(torch.ones(8, 64)).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    dist.destroy_process_group()

if __name__ == "__main__":
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(worker, args=(port,), nprocs=2)
"""


@pytest.mark.matrix
def test_ranks_on_gloo_wait_for_the_one_that_is_late(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    home = child_copy(tmp_path / "child", diagnostic.folder_of("profile"))
    (tmp_path / "out").mkdir()
    (tmp_path / "fit.py").write_text(TRAINING)
    env = {
        **os.environ, "PYTHONPATH": str(home),
        "CELEDGER_PROBE": '{"kind": "profile"}', "CELEDGER_PROBE_OUT": str(tmp_path / "out"),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "fit.py"], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    waits = {}
    for number in "01":
        (profile,) = records(tmp_path / "out" / number, "profile")
        window = profile["window"]
        waits[rank_of(tmp_path / "out" / number)] = sum(window["communication"]["waited"])
        step = [sum(row["seconds"][3] for row in window["rows"]), window["steps"][3]]
        assert step[0] == pytest.approx(step[1])  # parts add up, the wait among them
    assert waits["rank 0 of 2"] > waits["rank 1 of 2"]
