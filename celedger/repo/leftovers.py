"""Telling whether a file was written, and deleting whatever a trial left behind.

Files only: knows no git. Never follows a symbolic link, so nothing outside the tree is touched.
"""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

# Mode, size, time of change and inode, and a link's target: what changes when a file is written.
# The time is ctime, which no program can set back.
Key = tuple[int, int, int, int, str]


def key_of(path: Path) -> Key:
    """Raises OSError where there is nothing."""
    found = path.lstat()
    target = str(path.readlink()) if stat.S_ISLNK(found.st_mode) else ""
    return (found.st_mode, found.st_size, found.st_ctime_ns, found.st_ino, target)


def delete(path: Path) -> None:
    """Delete a file, a link (never what it points to) or a whole folder, if it is there."""
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
        return
    try:
        shutil.rmtree(path)
    except OSError:
        open_folders(path)
        shutil.rmtree(path)


def open_folders(path: Path) -> None:
    """Let the owner write in a folder and all folders below it, so that they can be deleted."""
    path.chmod(0o755)
    for above, folders, _ in os.walk(path):
        for name in folders:
            folder = Path(above) / name
            if not folder.is_symlink():
                folder.chmod(stat.S_IMODE(folder.stat().st_mode) | stat.S_IRWXU)
