"""Small repositories, trainings that read them in many ways, and mutations of each, for
`reuse.py` to hold footprints against."""

# ruff: noqa: E501 (one feature a line)

from __future__ import annotations

import io
import random
import subprocess
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from reuse_features import FEATURES, FOILS, HEAD, QUIET

# path -> (git mode, content); of a link the target, of a submodule its commit
Tree = dict[str, tuple[str, bytes]]

ADDED = (
    "json.py", "random.py", "pkg.py", "pkg/sub.py", "pkg/core/__init__.py", "accel.py",
    "accel/__init__.py", "space/__init__.py", "space/part/__init__.py", "sitecustomize.py",
    "usercustomize.py", "conf/local.json", "conf/zz.json", "cache/x", "setup.cfg", "pkg/setup.cfg",
    "plugins/zz.py", "vendor/helper.py", "vendor/more.pth", "vendor/extra/__init__.py", "flag",
    "data/none.txt", "data/more.csv", "docs/new.md", "tests/test_new.py", "pkg/new.py", "a.zip",
    "pkg/sub/mod/__init__.py", "pkg/core.so", "extra.py", "helper.py", "hashlib.py", "README.txt",
    "pkg/__init__.pyc", "pkg/sub/setup.cfg", "docs/deep/er/file.txt", "inspect.py", "Data/train.csv",
)  # fmt: skip
# New files that nobody reads, beside those that are imported.
UNUSED = (
    "LICENSE", "train_old.py", "scripts/one.py", "scripts/two.sh", "pkg/aside.py", "pkg/notes.txt",
    "pkg/sub/aside.py", "space/aside.py", "vendor/aside.txt", ".gitignore", "pkg/extra/__init__.py",
    "Json.py", "tools/aside.py", "accelerate.py", "jsons/a.txt",
)  # fmt: skip
# And new ones that may come before what is imported, or are found at last.
SHADOWS = (
    "json.py", "json/__init__.py", "struct.py", "typing.py", "encodings.py", "hashlib.so", "pkg.py",
    "pkg.abi3.so", "pkg/core/__init__.py", "pkg/core/x.txt", "pkg/late.so", "pkg/late.pyc",
    "pkg/sub.py", "pkg/sub/mod.abi3.so", "pkg/sub/mod/__init__.pyc", "pkg/__init__.so", "accel.py",
    "accel/x.py", "accel.pyc", "space.py", "space/__init__.py", "space/part.abi3.so",
    "space/part/__init__.py", "sitecustomize.py", "usercustomize.py", "sitecustomize/__init__.py",
    "new-1.dist-info/entry_points.txt", "vendor/extra.so", "vendor/more/deep/__init__.py",
)  # fmt: skip
RESERVED = ".gitattributes"
FOILED = 0.5  # so many mutations are of what the training does
CORE = '''\
"""Core."""

LEVEL = NUMBER


def step(x: int) -> int:
    """One step."""
    y: int = x
    return y * LEVEL  # slowly


def never(x, k=1):
    """Not called."""
    return step(x) + 1


def fail():
    raise ValueError(LEVEL)


def checked(x):
    assert x > 100
    return x


def lazily():
    yield 1
'''
LOOKS = "def doc(f): return f.__doc__\n\n\ndef line(f): return f.step.__code__.co_firstlineno\n"


def base(rng: random.Random) -> Tree:
    number = lambda: rng.randrange(10**6)  # noqa: E731
    texts = {
        "pkg/__init__.py": f"# package\nNAME = {number()}\n",
        "pkg/core.py": CORE.replace("NUMBER", str(number())),
        "pkg/late.py": f"LEVEL = {number()}\n\n\ndef late(x):\n    # later\n    return x + LEVEL\n"
        "\n\ndef never(x):\n    return x - LEVEL\n",
        "pkg/sub/__init__.py": "",
        "pkg/sub/mod.py": f"VALUE = {number()}\n",
        "pkg/unused.py": "X = 1\n",
        "pkg/version.py": f"V = {number()}\n",
        "pkg/table.txt": f"{number()}\n",
        "space/part.py": f"X = {number()}\n",
        "data/train.csv": f"{number()}\n", "data/extra.csv": f"{number()}\n",
        "data/child.txt": f"{number()}\n", "data/c.bin": f"{number()}\n",
        "data/map.bin": f"{number()}\n", "data/move.txt": f"{number()}\n",
        "data/hard.txt": f"{number()}\n", "data/thread.txt": f"{number()}\n",
        "data/fork.txt": f"{number()}\n", "data/proc.txt": f"{number()}\n",
        "conf/a.json": f"{number()}\n", "conf/b.json": f"{number()}\n",
        "plugins/one.py": f"{number()}\n", "plugins/two.py": f"{number()}\n",
        "vendor/extra.py": f"Y = {number()}\n", "vendor/paths.pth": "more\n",
        "vendor/more/deep.py": "D = 1\n", "tools/lib.sh": f"echo {number()}\n",
        ".env": f"RATE={number()}\n", "docs/index.md": "words\n", "docs/guide.md": "words\n",
        "tests/test_pkg.py": "pass\n", "README.md": "words\n", "CHANGES.md": "words\n",
        "tools/other.py": "pass\n", "examples/demo.py": "pass\n", "variants/a/v": f"{number()}\n",
        "variants/deep/x/y": f"{number()}\n", "variants/sh/v": f"{number()}\n",
        "variants/left/v": f"{number()}\n", "variants/right/v": f"{number()}\n", "pkg/ident.py": 'ID = "$Id$"\n',
        "pkg/same.py": "SAME = 1\n", "pkg/other.py": "SAME = 1\n",
        "odd\x1f/strange.py": "def f():\n    return 1\n",
        "variants/code/moved.py": "def f():\n    return 1\n",
    }  # fmt: skip
    tree = {path: ("100644", text.encode()) for path, text in texts.items()}
    tree["tools/run.sh"] = ("100755", b"#!/bin/sh\n. ./tools/lib.sh\n")
    tree["current"] = ("120000", b"data/train.csv")
    tree["latest"] = ("120000", b"data")
    tree["deps.zip"] = tree["tools/deps"] = ("100644", packed("looks.py", LOOKS))
    tree["tools/gen.z"] = ("100644", zlib.compress(LOOKS.encode()))
    return tree


def packed(name: str, text: str) -> bytes:
    """An archive of one file."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo(name), text)
    return file.getvalue()


def mutate(tree: Tree, rng: random.Random, foils: Sequence[str] = ()) -> tuple[str, Tree]:
    """One commit's change, and what it was: often one of the `foils`."""
    if foils and rng.random() < FOILED:
        return foil(tree, rng.choice(foils))
    new = dict(tree)
    files = [p for p, (mode, _) in tree.items() if mode.startswith("100")]
    path = rng.choice(files)
    mode, content = new[path]
    kind = rng.choice([
        "edit", "edit", "edit", "comment", "blank", "delete", "add", "add", "add",
        "case", "mode", "to-link", "retarget", "submodule", "to-folder", "move", "attributes",
        "swap", "folder-link", "swap-links",
        *["words"] * 6, *["quiet"] * 24, *["unused"] * 4, *["shadow"] * 4,
    ])  # fmt: skip
    match kind:
        case "quiet":
            return foil(tree, rng.choice(sorted(QUIET)))
        case "words":
            path = rng.choice([p for p in files if p.endswith(".py")])
            mode, content = tree[path]
            lines = content.splitlines(keepends=True)
            lines.insert(
                rng.randint(0, len(lines)), rng.choice([b"# words\n", b"\n", b"\n\n# more\n"])
            )
            new[path] = (mode, b"".join(lines))
        case "edit":
            new[path] = (mode, content.replace(b"1", b"7") + b"0 = 0\n" * (b"1" not in content))
        case "comment":
            new[path] = (mode, content + b"# a comment\n")
        case "blank":
            new["pkg/core.py"] = (mode, b"\n\n" + tree["pkg/core.py"][1])
        case "delete":
            del new[path]
        case "add":
            add(new, rng.choice(ADDED), b"FAST = MINE = X = Y = Z = VALUE = 1\n")
        case "unused":
            add(new, rng.choice(UNUSED), b"FAST = MINE = X = Y = Z = VALUE = 1\n")
        case "shadow":
            add(new, rng.choice(SHADOWS), b"FAST = MINE = X = Y = Z = VALUE = 1\n")
        case "case":
            del new[path]
            folder, _, name = path.rpartition("/")
            add(new, f"{folder}/{name.capitalize()}".lstrip("/"), content)
        case "mode":
            path = rng.choice([path, "tools/run.sh", "pkg/core.py"])
            new[path] = ("100644" if new[path][0] == "100755" else "100755", new[path][1])
        case "to-link":
            del new[path]
            target = "../" * path.count("/") + rng.choice(files)
            new[path] = ("120000", target.encode())
        case "retarget":
            new["current"] = (
                "120000",
                rng.choice(["data/extra.csv", "none", "/etc/hostname"]).encode(),
            )
        case "folder-link":
            new["latest"] = ("120000", rng.choice(["conf", "none", "docs"]).encode())
        case "swap-links":
            new["current"], new["latest"] = ("120000", b"latest/train.csv"), ("120000", b"./data")
        case "submodule":
            add(new, rng.choice(["third", "cache", "accel", "docs/third"]), b"1" * 40, "160000")
        case "to-folder":
            del new[path]
            add(new, f"{path}/inside", content)
        case "move":
            del new[path]
            add(new, rng.choice(ADDED), content)
        case "attributes":
            folder = rng.choice(["", "data/", "pkg/", "conf/", "docs/"])
            text = rng.choice([b"* text eol=crlf\n", b"*.py ident\n"])
            new[folder + RESERVED] = ("100644", text)
        case "swap":
            other = rng.choice(files)
            new[path], new[other] = new[other], new[path]
    return kind, new


def add(tree: Tree, path: str, content: bytes, mode: str = "100644") -> None:
    """Put a file there, whatever was in its place."""
    parts = path.split("/")
    for i in range(1, len(parts)):
        tree.pop("/".join(parts[:i]), None)
    for below in [p for p in tree if p.startswith(f"{path}/")]:
        del tree[below]
    tree[path] = (mode, content)


def foil(tree: Tree, kind: str) -> tuple[str, Tree]:
    """A change of a kind of QUIET, of words before a source (#), of what a file says, or a new
    file (+)."""
    if kind.startswith("+"):
        new = dict(tree)
        add(new, kind[1:], b"FAST = 1\n")
        return "add", new
    if kind.startswith("#"):
        mode, content = tree[kind[1:]]
        return "words", {**tree, kind[1:]: (mode, b"# words\n\n" + content)}
    if kind not in QUIET:
        mode, content = tree[kind]
        return "edit", {**tree, kind: (mode, b"1" + content)}
    path, old, text = QUIET[kind]
    mode, content = tree[path]
    assert old.encode() in content, kind
    return kind, {**tree, path: (mode, content.replace(old.encode(), text.encode()))}


@dataclass(frozen=True, slots=True)
class Training:
    """A training that does some of the features, in some order."""

    features: tuple[str, ...]

    @property
    def foils(self) -> tuple[str, ...]:
        return tuple(foil for name in self.features for foil in FOILS.get(name, ()))

    def program(self) -> str:
        lines = [
            f"try:\n    {FEATURES[name]}\nexcept Exception as e:\n    mix({name!r}, type(e).__name__)"
            for name in self.features
        ]
        return "\n".join([HEAD, *lines, "print(state.hexdigest())\n"])


def training(rng: random.Random, turn: int) -> Training:
    """The first feature takes turns: where several name the same, one that is not noticed is hidden
    by the rest."""
    names = sorted(FEATURES)
    chosen = [names[turn % len(names)], *rng.sample(names, rng.randint(0, 5))]
    return Training(tuple(dict.fromkeys(chosen)))


def attributes(repository: Path, rng: random.Random) -> None:
    """`$Id$` is written by attributes that no commit has."""
    if rng.random() < 0.5:
        (repository / ".git" / "info" / "attributes").write_text("*.py ident\n")
    else:
        (repository / "attributes").write_text("*.py ident\n")
        words = ["config", "core.attributesFile", str(repository / "attributes")]
        subprocess.run(["git", *words], cwd=repository, check=True)
