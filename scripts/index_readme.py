"""Give README absolute links when a package is built, since its page on an index has no files
beside it. Hatchling calls this (`[tool.hatch.metadata.hooks.custom]` in pyproject.toml).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_TARGET = re.compile(r"\]\((?!\w+:|#)([^)]+)\)")


def absolute(text: str, repository: str, tag: str) -> str:
    """Return Markdown whose relative links lead to files of a tag in the repository at a URL."""

    def link(match: re.Match[str]) -> str:
        kind = "raw" if match[1].endswith((".png", ".svg")) else "blob"
        return f"]({repository}/{kind}/{tag}/{match[1]})"

    return _TARGET.sub(link, text)


class ReadmeHook(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        base = Path(self.root, "celedger", "base", "__init__.py").read_text(encoding="utf-8")
        version = re.search(r'^VERSION = "(.+)"', base, re.MULTILINE)
        assert version is not None
        text = absolute(
            Path(self.root, "README.md").read_text(encoding="utf-8"),
            metadata["urls"]["Repository"], f"v{version[1]}",
        )  # fmt: skip
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
