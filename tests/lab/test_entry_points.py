"""The lab's verbs are celedger's own: no other package takes their place, and none loses them."""

from __future__ import annotations

from pathlib import Path

import packages
import pytest

from celedger.base import plugins


def test_celedger_s_own_come_first_and_from_the_tree_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Metadata of an older install must not lose a verb, nor a package replace one."""
    old = "[celedger.verbs]\nexplain = celedger.cli.explain:explain\nfault = gone:x\n"
    packages.install(tmp_path / "site", "celedger", old, {})
    packages.install(tmp_path / "site", "other", "[celedger.verbs]\nexplain = other:x\n", {})
    monkeypatch.syspath_prepend(tmp_path / "site")
    found = plugins.installed(plugins.VERBS)
    assert found["explain"].module == "celedger.lab.verbs.explain"
    assert "fault" not in found
    assert not found["explain"].lies_in(Path(plugins.__file__).parents[2])  # celedger itself
