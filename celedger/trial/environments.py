"""The environment of a task by what it imports: a package that none of its trials imported may
come, go or change, and the environment stays the one in which they ran."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from celedger.ledger import Ledger
from celedger.model import Environment, Task
from celedger.trial.reuse.results import PACKAGE


def settled(ledger: Ledger, task: Task, here: Environment) -> Environment:
    """Return the environment under which a trial of a task is kept that would run `here`: the
    newest in which it ran that differs from this one in no package that its trials imported, else
    this one. That one names the packages that count."""
    ran_in = ledger.environments_of(task.recipe)
    if here.fingerprint in ran_in:
        return here
    counting: set[str] = set()
    for fingerprint in ran_in:
        environment, names = ledger.environment(fingerprint), _imported(ledger, task, fingerprint)
        if environment is None or names is None:
            continue
        counting |= names
        if _packages_of(environment, names) == _packages_of(here, names) and (
            _without_packages(environment) == _without_packages(here)
        ):
            return environment
    if not counting:
        return here
    beside = here.details.get("beside")
    beside = {**(beside if isinstance(beside, Mapping) else {}), "imported": sorted(counting)}
    return replace(here, details={**here.details, "beside": beside})


def _imported(ledger: Ledger, task: Task, fingerprint: str) -> set[str] | None:
    """Return the distributions that the trials of a task in an environment imported; None where
    that is not known of all of them."""
    trials = ledger.reusable_trials(recipe=task.recipe, environment=fingerprint)
    names: set[str] = set()
    for number in {trial.footprint for trial in trials}:
        opened = ledger.footprint(number).opened
        own = {os.fsdecode(path[len(PACKAGE) :]) for path in opened if path.startswith(PACKAGE)}
        if not own:
            return None
        names |= own
    return names or None


def _packages_of(environment: Environment, names: set[str]) -> dict[str, object]:
    packages = environment.details.get("packages")
    return {n: packages.get(n) for n in names} if isinstance(packages, Mapping) else {}


def _without_packages(environment: Environment) -> dict[str, object]:
    return {k: v for k, v in environment.details.items() if k not in ("packages", "beside")}
