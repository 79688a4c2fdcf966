"""Packages of strangers, as pip would install them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def install(folder: Path, name: str, entry_points: str, files: Mapping[str, str]) -> None:
    """Write the files of a package into a folder of `sys.path`, with the metadata of a wheel."""
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    metadata = folder / f"{name}-1.0.dist-info"
    metadata.mkdir(parents=True, exist_ok=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(entry_points)
