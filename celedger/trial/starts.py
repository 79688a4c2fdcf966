"""The permit that each start for a suite needs, by its kind: questions to an interpreter, the
launcher of warm trials, virtual environments, builds, trainings. Knows what of a suite counts in
each; what is started, and whether it may be, is for others."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from celedger.model import Task
from celedger.repo import Repository
from celedger.system.gate import Gate, Permit
from celedger.trial.protocol import TELEMETRY
from celedger.trial.surroundings import variables

INSTALLING = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
_NO_TASK = Task("", "", ())
_GIVEN = frozenset(
    variables({}, _NO_TASK, tree=Path("/"), child=Path("/"), visible_devices="", extra={})
)
# What a task asks of celedger itself; all else of it is in the commands, builds and variables.
_ASKED = (
    "seeds", "inputs", "timeout", "silence", "memory", "sandbox", "steps", "pattern", "tensorboard",
    "whole", "pass_env",
)  # fmt: skip


@dataclass(frozen=True)
class Starts:
    """The permits of one suite in one repository. `child` is celedger's own copy for trainings,
    `files` are the suite's, each with the hash of its content."""

    gate: Gate
    repository: Repository
    child: Path
    files: Mapping[str, str]

    def question(self, task: Task, python: str) -> Permit:
        subject = f"interpreter of suite {task.suite}"
        return Permit(self.gate, subject, self._paths(python))

    def launcher(self, task: Task, python: str) -> Permit:
        asks = {"asks": _asked(task, ("pass_env",))} if task.pass_env else {}
        return self._permit(f"preload of suite {task.suite}", python, asks)

    def environment(
        self, task: Task, step: int, python: str, home: Path, requirements: Mapping[str, str]
    ) -> Permit:
        """One step of making the environment at `home` from requirement files, each with mode and
        blob."""
        subject = f"environment of suite {task.suite}, step {step}"
        paths, facts = self._paths(python, venv=home), {"requirements": dict(requirements)}
        return Permit(self.gate, subject, paths, given=INSTALLING, facts=facts)

    def build(self, task: Task, step: int, python: str, tree: Path, suite: Path) -> Permit:
        subject = f"build {step} of suite {task.suite}"
        asks = {"asks": _asked(task, ("inputs", "timeout", "silence", "sandbox", "pass_env"))}
        return self._permit(subject, python, {"files": self.files, **asks}, tree=tree, suite=suite)

    def training(
        self, task: Task, command: str, python: str, tree: Path, suite: Path, out: Path, seed: int
    ) -> Permit:
        subject = f"training {task.name} of suite {task.suite}"
        subject += f", command {command}" if len(task.commands) > 1 else ""
        metrics = {
            f"metric {m.name}": f"{m.direction} {m.kind} {m.floor} {m.summary} {m.unit}".strip()
            for m in task.metrics
            if m not in TELEMETRY
        }
        asks = {**_asked(task, _ASKED), **metrics}
        permit = self._permit(
            subject, python, {"files": self.files, "asks": asks}, tree=tree, suite=suite, out=out
        )
        return dataclasses.replace(permit, values={"seed": str(seed)})

    def _permit(
        self, subject: str, python: str, facts: Mapping[str, object] | None = None, **paths: Path
    ) -> Permit:
        named = self._paths(python, **paths)
        return Permit(self.gate, subject, named, given=_GIVEN, facts=facts or {})

    def _paths(self, python: str, **paths: Path) -> dict[str, str]:
        """The paths that differ from machine to machine, or from trial to trial. What a virtual
        environment of ours holds was allowed when it was made."""
        venvs = self.repository.state_dir / "venvs"
        if Path(python).is_relative_to(venvs):
            paths = {"venv": venvs / Path(python).relative_to(venvs).parts[0], **paths}
        return {
            "python": sys.executable,
            "state": str(self.repository.state_dir),
            "root": str(self.repository.root),
            "child": str(self.child),
            **{name: str(path) for name, path in paths.items()},
        }


def _asked(task: Task, names: tuple[str, ...]) -> dict[str, object]:
    """Those of these that are not as by default: a later celedger may know more of them."""
    settings = {name: getattr(task, name) for name in names}
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in settings.items()
        if value != getattr(_NO_TASK, name)
    }
