"""Which file a command's first word means."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def find_program(name: str, cwd: Path, env: Mapping[str, str]) -> tuple[str | None, str]:
    """The file to execute, or None and the reason. As exec would look, from `cwd` and with the
    PATH of `env`, but so that a missing command can be told from one that failed."""
    if not name:
        return None, "no command: its name is empty"
    if "/" in name:
        candidates = [cwd / name]
    else:
        folders = env.get("PATH", os.defpath).split(os.pathsep)
        candidates = [cwd / folder / name for folder in folders]
    try:
        for path in candidates:
            if path.is_file() and os.access(path, os.X_OK):
                return str(path), ""
        existing = [path for path in candidates if path.exists()]
        nearby = (cwd / name).is_file()
    except (OSError, ValueError) as error:  # a name too long, or with a NUL in it
        return None, f"no command {name[:80]!r}: {error}"
    if existing:
        return None, f"{existing[0]} is not an executable file"
    if "/" in name:
        return None, f"no command {name!r} in {cwd}"
    return None, f"no command {name!r} on PATH" + (f"; write ./{name} if it is meant" * nearby)
