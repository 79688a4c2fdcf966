"""Real trainings on a real GPU: equal bits twice, the CPU against CUDA, every probe under graphs,
mixed precision and fused optimisers, warm starts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Done, Project, celedger, make_project
from suites.conftest import Trials, trial

from suites import test_shipped_suites, test_vision_tasks

__all__ = ["trial"]  # a fixture

SHORT = {name: row[0] for name, row in test_shipped_suites.SHORT.items()} | {
    name: row[0] + test_vision_tasks.EVERY for name, row in test_vision_tasks.SHORT.items()
}
# They draw on the device, which has other numbers than the CPU, or compute in another type.
SAMPLES = ("vae_digits", "actor_critic")
DRAWS = (*SAMPLES, "mlp_digits", "vit_", "graph_communities", "[amp=true]")
LONG = ("averaged_cnn", "text_detector", "shape_tracker")  # minutes before the first step
COMPARED = [name for name in SHORT if not any(word in name for word in (*DRAWS, *LONG))]


@pytest.fixture(scope="session")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = make_project(tmp_path_factory.mktemp("gpu") / "project")
    made.commit("nothing", {"README.md": "nothing\n"})
    return made


@pytest.mark.parametrize("name", SHORT)
def test_a_task_repeats_itself_bit_by_bit(name: str, tmp_path: Path, trial: Trials) -> None:
    runs = [trial(name, SHORT[name], tmp_path / run) for run in ("a", "b")]
    marks = [[report["fingerprint"] for report in run] for run in runs]
    assert marks[0] == marks[1]
    assert all(report["peak_memory"] > 0 for report in runs[0] if "peak_memory" in report)


def beside_the_cpu(empty: Project, name: str) -> Done:
    suite = "core" if name in CORE else "wide"
    return celedger(
        empty.root, "explain", "HEAD", name, "--suite", suite, "--device", "cpu",
        "--b", "device=cuda:0", "--steps", "3", timeout=300,
    )  # fmt: skip


@pytest.mark.parametrize("name", COMPARED)
def test_cuda_differs_from_the_cpu_by_rounding_alone(name: str, empty: Project) -> None:
    done = beside_the_cpu(empty, name)
    assert done.status == 0, done.out + done.err


@pytest.mark.parametrize("name", SAMPLES)
def test_other_random_numbers_are_named_as_such(name: str, empty: Project) -> None:
    done = beside_the_cpu(empty, name)
    assert (done.status, "random numbers are drawn" in done.out) == (1, True), done.out + done.err


def test_a_large_tensor_is_summed_up_where_it_lies(run_on_gpu: Callable[[str], str]) -> None:
    """Of another element, another place and another type the sums differ; the host has the same."""
    seen = run_on_gpu(
        "import torch\nfrom celedger.lab.probes.tensors import sums\n"
        "a = torch.randn(5_000_000, device='cuda')\n"
        "b, c = a.clone(), a.roll(1)\n"
        "b[-1] = torch.nextafter(b[-1], b[-1] + 1)\n"
        "kinds = [a, a.clone(), a.cpu(), b, c, a.double(), a.bfloat16(), a.view(2500, 2000).T]\n"
        "print(*(int(sums(x) == sums(a)) for x in kinds))"
    )
    assert seen.split() == list("11100000")


CORE = ("resnet_digits", "char_transformer", "char_lstm", "linear_probe", "optimisers")
TRAINING = """\
import sys
import torch
from torch import nn
from celedger.child import log
tf32, amp, compiled = (word.lower() == "true" for word in sys.argv[1:])
torch.backends.cuda.matmul.allow_tf32 = tf32
torch.manual_seed(0)
cuda = torch.device("cuda")
layers = [nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 14 * 14, 256),
          nn.Linear(256, 10)]
net = nn.Sequential(*layers).to(cuda, memory_format=torch.channels_last)
if compiled:
    net = torch.compile(net)
optimiser = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True)
scaler = torch.amp.GradScaler("cuda")
rows = torch.randn(256, 3, 16, 16)
labels = torch.randint(10, (256,), device=cuda)

other = nn.Linear(64, 64).to(cuda)  # captured into a graph, and replayed in every step
still = torch.randn(64, 64, device=cuda)
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        other(still).sum().backward()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
optimiser.zero_grad(set_to_none=True)
captured = False

for step in range(60):
    x = rows[torch.randperm(256)[:64]].to(cuda, memory_format=torch.channels_last)
    y = labels[:64]
    with torch.autocast("cuda", torch.float16, enabled=amp):
        loss = nn.functional.cross_entropy(net(x), y)
    optimiser.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.step(optimiser)
    scaler.update()
    if not captured:
        with torch.cuda.graph(graph):
            other(still).sum().backward()
        captured = True
    graph.replay()
    if (y == 3).nonzero().numel():
        still[still > 100]
    loss.detach().to("cpu")
    torch.cuda.synchronize()
log(epoch=0, val_loss=float(loss))
"""
SUITE = """\
[suite]
name = "tiny"
preload = ["torch"]
[metrics.val_loss]
direction = "lower"
kind = "quality"
[[task]]
name = "fit"
command = "{python} {suite}/fit.py {tf32} {amp} {compiled}"
params = { tf32 = false, amp = true, compiled = false }
seeds = [0]
[[task]]
name = "compiled"
command = "{python} {suite}/fit.py {tf32} {amp} {compiled}"
params = { tf32 = false, amp = true, compiled = true }
seeds = [0]
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    folder = tmp_path_factory.mktemp("trainings") / "project"
    made = make_project(folder, SUITE, {"fit.py": TRAINING})
    made.commit("a", {"a.txt": "a\n"})
    made.commit("b", {"a.txt": "b\n"})
    return made


def ask(project: Project, *words: str) -> tuple[int, str]:
    done = celedger(project.root, *words, "--suite", "tiny", "--device", "cuda:0", timeout=300)
    assert "probe failed" not in done.err, done.err
    return done.status, done.out or done.err


@pytest.mark.parametrize(
    "words",
    [
        ("profile", "HEAD", "fit", "--memory"),
        ("watch", "fit", "HEAD"),
        ("preflight", "fit", "HEAD"),
        ("profile", "HEAD", "compiled"),
        ("watch", "compiled", "HEAD"),
    ],
    ids=" ".join,
)
def test_a_probe_bears_graphs_scalers_layouts_and_fused_optimisers(
    project: Project, words: tuple[str, ...]
) -> None:
    status, answer = ask(project, *words)
    assert status in (0, 1), answer


def test_equal_commits_are_equal_under_the_trace(project: Project) -> None:
    status, answer = ask(project, "explain", "HEAD~1..HEAD", "fit")
    assert status == 0, answer


def test_an_edit_that_keeps_the_arithmetic_keeps_the_bits(project: Project) -> None:
    """The backward pass of a convolution repeats its bits where it is told to."""
    script = project.root / "suites" / "tiny" / "fit.py"
    before = script.read_text()
    script.write_text(before.replace("labels[:64]", "labels[0:64]"))
    try:
        status, answer = ask(project, "same", "fit")
    finally:
        script.write_text(before)
    assert (status, "same bits" in answer) == (0, True), answer


def test_tf32_is_a_difference_and_its_absence_none(project: Project) -> None:
    words = ["explain", "HEAD", "fit", "--steps", "3", "--json", "--b", "tf32=true"]
    for side in ("--a", "--b"):
        words += [side, "amp=false"]
    status, answer = ask(project, *words)
    (found,) = json.loads(answer)["explanations"]
    assert found["verdict"] != "equal", answer
    assert status in (0, 1)


def test_a_profile_names_the_waits_and_the_idle_gpu(project: Project) -> None:
    status, answer = ask(project, "profile", "HEAD", "fit", "--json")
    assert status == 0, answer
    document = json.loads(answer)
    methods = {wait["method"] for wait in document["waits"]}
    assert {"synchronize", "nonzero", "to"} <= methods
    assert document["environment"]["device"] == "cuda"
    assert 0 < document["gpu"]["busy"] < document["phases"][0]["median"]
    assert document["gpu"]["pageable_copies"] > 0


def test_a_warm_start_trains_on_the_gpu(project: Project) -> None:
    assert ask(project, "run", "HEAD", "--task", "fit")[0] == 0
    done = celedger(project.root, "show", "HEAD", "--json")
    assert done.status == 0, done.err
    assert "duration" in done.out and "gpu_memory" in done.out


def test_a_fork_of_a_process_that_started_cuda_knows_it(run_on_gpu: Callable[[str], str]) -> None:
    """The fork server asks this before it forks a trial."""
    seen = run_on_gpu(
        "import os, torch\n"
        "def forked():\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        os._exit(torch.cuda._is_in_bad_fork())\n"
        "    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])\n"
        "print(forked()); torch.zeros(1, device='cuda'); print(forked())"
    )
    assert seen.split() == ["0", "1"]
