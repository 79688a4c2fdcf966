"""The made-up history that the views show, for pictures and files of it."""

from __future__ import annotations

from views.conftest import history, make_commits

__all__ = ["history", "make_commits"]
