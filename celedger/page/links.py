"""Addresses of commits on the web host of a remote, and of views inside of the page."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote, urlencode

# `https://user:token@host/owner/name.git`, `ssh://git@host:22/owner/name`, `git@host:owner/name`.
_URL = re.compile(r"(?:https?|ssh|git)://(?:[^/@]*@)?(?P<host>[\w.-]+)(?::\d+)?/(?P<path>.+)")
_SCP = re.compile(r"(?:[^/@:]+@)?(?P<host>[\w.-]+):(?!/)(?P<path>.+)")
# A part of the host's name, and where it shows a commit and a comparison.
_HOSTS = {
    "github": ("commit/{}", "compare/{}...{}"),
    "gitlab": ("-/commit/{}", "-/compare/{}...{}"),
    "bitbucket": ("commits/{}", "branches/compare/{1}..{0}"),
}


@dataclass(frozen=True, slots=True)
class Host:
    """The addresses of a repository on the web; empty addresses where that is not known."""

    base: str = ""
    commits: str = ""
    comparisons: str = ""

    @classmethod
    def of(cls, remote: str) -> Host:
        """Return the host of a remote's address, never with what a password could be in."""
        match = _URL.fullmatch(remote.strip()) or _SCP.fullmatch(remote.strip())
        if match is None:
            return cls()
        name, path = match["host"].lower(), match["path"].strip("/").removesuffix(".git")
        for host, (commits, comparisons) in _HOSTS.items():
            if host in name.split(".") and path:
                return cls(f"https://{name}/{quote(path)}/", commits, comparisons)
        return cls()

    def commit(self, sha: str) -> str:
        return self.base + self.commits.format(sha) if self.base else ""

    def comparison(self, old: str, new: str) -> str:
        return self.base + self.comparisons.format(old, new) if self.base else ""


def view(task: str, metric: str = "", commit: str = "") -> str:
    """Return the address of a view of the page: its state, as script.js reads it."""
    state = {"t": task, "m": metric, "c": commit}
    return "#" + urlencode({key: value for key, value in state.items() if value}, safe="/")
