"""A diagnostic run: one training of a task at a commit, observed by a probe, outside the ledger. It
uses the same checkout, build, environment and device lock as a trial, but no journal:
`celedger.child.log` does nothing in it, and nothing enters the ledger. The files of the probe
inside the training (celedger.child.attach loads it) are in a folder for the caller to read.
Probes are entry points `celedger.probes`: the name of a module and the package that has it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from celedger.base import plugins
from celedger.base.errors import CannotJudge, MachineError
from celedger.base.model import Commit, OutcomeKind, Task
from celedger.system.process import TRIAL_VARIABLE
from celedger.trial.ending import classify
from celedger.trial.runner import Bench
from celedger.trial.training_variables import child_copy, variables

EAGER = {"TORCHDYNAMO_DISABLE": "1"}  # for probes whose hooks cannot be compiled
FAILED = "probe-failed.txt"  # of a probe that stopped (celedger.child.attach)


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """The end of the run, and its files: `out` is the probe's folder."""

    out: Path
    log: Path
    kind: OutcomeKind
    message: str = ""

    @property
    def ok(self) -> bool:
        return self.kind is OutcomeKind.OK


def diagnose(
    bench: Bench,
    commit: Commit,
    task: Task,
    seed: int,
    out: Path,
    probe: Mapping[str, object],
    *,
    params: Mapping[str, object] | None = None,
    environment: Mapping[str, str] | None = None,
    quick: bool = False,
) -> Diagnostic:
    """Run all commands of the task once, with a probe inside its trainings.

    `probe` names the probe that observes them (`kind`) and holds its options; it writes into `out`.
    `params` and `environment` change the task's parameters and variables. A `quick` one, in which
    no time is measured, neither waits for the device nor holds it, and its training is forked by a
    launcher where the suite preloads modules. A training that fails is a result.
    Raises CannotJudge if the commit cannot be built, or if the probe itself failed; MachineError if
    there is no such probe.
    """
    station, setup = bench.station, bench.setup
    probes = folder_of(str(probe["kind"])) if probe else None  # without one it is a bare training
    child = child_copy(setup.child.parent, probes)
    task = task._replace(params={**task.params, **(params or {})})
    out.mkdir(parents=True, exist_ok=True)
    log = out / "log.txt"
    with nullcontext() if quick else station.device_held():
        untraced = task._replace(trace=False)
        env = variables(setup.base_env, untraced, tree=station.tree, child=child,
                        visible_devices=station.device.visible, extra={
            "CELEDGER_SEED": str(seed),
            TRIAL_VARIABLE: bench.new_ulid(),
            "CELEDGER_PROBE": json.dumps(dict(probe)),
            "CELEDGER_PROBE_OUT": str(out),
            **(environment or {}),
        })  # fmt: skip
        site = str(_site(child, out))
        cold = {**env, "PYTHONPATH": os.pathsep.join([site, env["PYTHONPATH"]])}
        kind, reason = station.prepare(commit, task, env, log)
        if kind is not OutcomeKind.OK:
            raise CannotJudge(f"{task.name} cannot be built at {commit.sha[:10]}: {reason}")
        installation = station.place(commit.sha, task)
        for _, argv in station.lines(task, installation, seed, out):
            fork = station.forker(task, installation.python, argv, env) if quick else None
            end = station.run_command(
                task, argv, out, env=env if fork else cold, log=log, timeout=task.timeout,
                fork=fork,
            )  # fmt: skip
            fault = out / FAILED
            if fault.exists():
                reason = fault.read_text().strip().splitlines()[-1]
                raise CannotJudge(
                    f"the probe failed, not the training: {reason}", f"report it with {fault}"
                )
            kind = classify(end, log)
            if kind is not OutcomeKind.OK:
                return Diagnostic(out, log, kind, station.why(task, end, log))
    return Diagnostic(out, log, OutcomeKind.OK)


def folder_of(kind: str) -> Path:
    """Return the folder of the probe of this name. Raises MachineError."""
    probes = plugins.installed(plugins.PROBES)
    if kind not in probes:
        raise MachineError(f"no package that is installed has a probe {kind!r}")
    return probes[kind].folder()


def _site(child: Path, out: Path) -> Path:
    """Make a folder whose `sitecustomize` makes Python attach the probe before anything else."""
    site = out / "site"
    site.mkdir(exist_ok=True)
    shutil.copyfile(child / "sitecustomize.py", site / "sitecustomize.py")
    return site
