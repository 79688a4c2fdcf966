"""The demo's library at any point of its life: templates in, files out.

A snapshot is decided by a set of flags (what has been done to the library so far) and a
vocabulary (its names and numbers). The templates carry their variants inline:

    #% file if adam           (first line: the file exists only then)
    #% if relu and not fast   `or` binds loosest, then `and`, then `not`
    #% elif … / #% else / #% end
    @package@                 a word of the vocabulary

Pure: flags and words in, bytes out. It must not know about git, commits or seeds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from functools import cache
from pathlib import Path

TEMPLATES = Path(__file__).parent / "templates"
_DIRECTIVE = re.compile(r"^\s*#%\s*(file if|if|elif|else|end)\b\s*(.*?)\s*$")
_WORD = re.compile(r"@([A-Za-z_]+)@")
_BLANKS = re.compile(r"\n{4,}")


def holds(condition: str, flags: Set[str]) -> bool:
    """Whether `a and not b or c` is true of the flags."""

    def term(text: str) -> bool:
        name = text.strip()
        return name[4:].strip() not in flags if name.startswith("not ") else name in flags

    return any(all(term(part) for part in each.split(" and ")) for each in condition.split(" or "))


def expand(template: str, flags: Set[str], words: Mapping[str, str]) -> str | None:
    """The file's text, or None where it does not exist. ValueError: unbalanced directives;
    KeyError: a word that the vocabulary lacks."""
    kept: list[str] = []
    open_ifs: list[list[bool]] = []  # [this branch holds, some branch held]
    for line in template.splitlines():
        match = _DIRECTIVE.match(line)
        if match is None:
            if all(branch for branch, _ in open_ifs):
                kept.append(line)
            continue
        verb, condition = match.groups()
        if verb == "file if":
            if not holds(condition, flags):
                return None
        elif verb == "if":
            open_ifs.append([holds(condition, flags)] * 2)
        elif not open_ifs:
            raise ValueError(f"#% {verb} without #% if")
        elif verb == "end":
            open_ifs.pop()
        else:
            state = open_ifs[-1]
            state[0] = not state[1] and (verb == "else" or holds(condition, flags))
            state[1] = state[1] or state[0]
    if open_ifs:
        raise ValueError("#% if without #% end")
    text = _WORD.sub(lambda found: words[found[1]], "\n".join(kept))
    return _BLANKS.sub("\n\n\n", text).strip("\n") + "\n"


@cache
def templates(folder: str) -> Mapping[str, str]:
    """Path within `folder` -> template, for all templates below it."""
    root = TEMPLATES / folder
    return {
        str(path.relative_to(root).with_suffix("")): path.read_text(encoding="utf-8")
        for path in sorted(root.rglob("*.in"))
    }


def snapshot(folder: str, flags: Set[str], words: Mapping[str, str]) -> dict[str, bytes]:
    """All files of a tree as they stand with these flags, by path."""
    files = {}
    for path, template in templates(folder).items():
        text = expand(template, flags, words)
        if text is not None:
            files[path.replace("PACKAGE", words["package"])] = text.encode()
    return files
