"""Small repositories, trainings that read them in many ways, and mutations of each, for
`closures.py` to hold closures against."""

# ruff: noqa: E501 (one feature a line)

from __future__ import annotations

import random

# path -> (git mode, content); of a link the target, of a submodule its commit
Tree = dict[str, tuple[str, bytes]]

HEAD = """\
import hashlib, os, sys, subprocess
state = hashlib.sha256()
def mix(*values): state.update(repr(values).encode())
def text(path):
    with open(path, "rb") as file: return file.read()
def forked(work, close=False):
    r, w = os.pipe()
    if os.fork() == 0:
        try:
            if close: os.closerange(3, w)
            os.write(w, repr(work()).encode())
        finally: os.kill(os.getpid(), 9)
    os.close(w); os.wait(); mix(os.read(r, 999))
"""
# What a training may do with its repository. Each is tried: what fails counts as what it did.
FEATURES = {
    "import": "import pkg.core; mix(pkg.core.LEVEL, pkg.core.step(3))",
    "lazy": "from pkg.sub import mod; mix(mod.VALUE)",
    "try_import": "import accel; mix(accel.FAST)",
    "namespace": "import space.part; mix(space.part.X)",
    "data": "mix(text('data/train.csv'))",
    "link": "mix(text('current'))",
    "linked_folder": "mix(text('latest/extra.csv'))",
    "readlink": "mix(os.readlink('current'))",
    "exists": "mix(os.path.exists('conf/local.json'), os.path.isdir('cache'))",
    "walk_up": "mix([os.path.isfile(p + 'setup.cfg') for p in ('pkg/sub/', 'pkg/', '')])",
    # What looks at code otherwise than by carrying it out.
    "own_doc": "import pkg.own; mix(pkg.own.TEXT)",
    "class_doc": "import pkg.core; mix(sorted(pkg.core.Net.__dict__), pkg.core.Net.__dict__['__doc__'])",
    "dataclass": "import dataclasses, pkg.record; mix([(f.name, str(f.type)) for f in dataclasses.fields(pkg.record.Row)])",
    "repr": "import pkg.record; mix(repr(pkg.record.Row(1, 2)))",
    "hints": "import pkg.core; mix(sorted(map(str, pkg.core.step.__annotations__.items())))",
    "linecache": "import linecache, pkg.core; mix(linecache.getline(pkg.core.__file__, 9))",
    "traceback": "import pkg.core, sys\n    try: pkg.core.fail()\n    except ValueError: mix(sys.exc_info()[2].tb_next.tb_lineno)",
    "printed_traceback": "mix(subprocess.run([sys.executable, '-c', 'import pkg.core as c; c.fail()'], capture_output=True).stderr)",
    "format_exc": "import pkg.core, logging, io\n    out = io.StringIO(); log = logging.getLogger('x'); log.addHandler(logging.StreamHandler(out))\n    try: pkg.core.fail()\n    except ValueError: log.exception('x'); mix(out.getvalue())",
    "own_file": "import pkg.core; mix(text(pkg.core.__file__))",
    "source_size": "mix(os.path.getsize('pkg/core.py'), os.stat('pkg/own.py').st_size)",
    "sizes": "mix(subprocess.run('cat pkg/*.py | wc -c; ls -s --block-size=1 pkg', shell=True, capture_output=True).stdout)",
    "marshal": "import marshal, pkg.core; mix(marshal.dumps(pkg.core.step.__code__))",
    "warned": "import pkg.core\n    import warnings\n    with warnings.catch_warnings(record=True) as w: pkg.core.warn()\n    mix(len(w))",
    "warning": "mix(subprocess.run([sys.executable, '-c', 'import pkg.core as c; c.warn()'], capture_output=True).stderr)",
    "isolated": "mix(subprocess.run([sys.executable, '-I', '-c', 'import sys; sys.path.insert(0, chr(46)); import pkg.core as c; print(c.step(2))'], capture_output=True).stdout)",
    "stripped": "mix(subprocess.run([sys.executable, '-OO', '-c', 'import pkg.core as c; print(c.checked(2))'], capture_output=True).stdout)",
    "loader": "import pkg.core; mix(pkg.core.__loader__.get_data(pkg.core.__file__)[:40])",
    "compiled": "import pkg.core; exec(compile(text('pkg/core.py'), 'pkg/core.py', 'exec'), {'__name__': 'x'}); mix(1)",
    "unstarted": "import pkg.core; mix(type(pkg.core.lazily()).__name__)",
    "started": "import pkg.core; mix(next(pkg.core.generate()))",
    "method": "import pkg.core; mix(pkg.core.Net().value())",
    "by_name": "import pkg.core; mix(getattr(pkg.core, 'st' + 'ep')(5))",
    "nested": "import pkg.core; mix(pkg.core.outer(2))",
    "scopes": "import pkg.scoped; mix(sorted(pkg.scoped.scoped(2)))",
    "reload": "import importlib, pkg.own; importlib.reload(pkg.own); mix(pkg.own.TEXT is None)",
    "fork_import": "forked(lambda: __import__('pkg.late').late.late(2))",
    "thread_import": "import threading; t = threading.Thread(target=lambda: mix(__import__('pkg.late').late.late(3))); t.start(); t.join()",
    "fork_call": "import pkg.late; forked(lambda: pkg.late.late(3))",
    "closed_call": "import pkg.late; forked(lambda: pkg.late.late(4), close=True)",
    "rewrites": "import re; f = 'pkg/late.py'; t = open(f).read(); open(f, 'w').write(re.sub('#.*', '', t) + 'N = %d' % len(t)); import pkg.late; mix(pkg.late.N)",
    "compiles": "import py_compile, pkg.own; py_compile.compile('pkg/late.py'); import pkg.late; mix(pkg.late.late(1))",
    "linked_code": "os.symlink('pkg', 'alias'); import alias.late; mix(alias.late.late(2))",
    "traced": "import pkg.late; sys.settrace(lambda f, e, a: mix(f.f_lineno) if 'late' in f.f_code.co_filename else None); pkg.late.late(1); sys.settrace(None)",
    "codes": "import pkg.late, types; f = types.FunctionType(pkg.late.late.__code__, {'LEVEL': 3}); mix(f(2))",
    "bytecode": "import dis, pkg.late; mix([i.opname for i in dis.get_instructions(pkg.late.late)])",
    "size": "mix(os.path.getsize('data/extra.csv'))",
    "mode": "mix(os.access('tools/run.sh', os.X_OK), os.stat('pkg/core.py').st_mode)",
    "plugins": "mix([text('plugins/' + n) for n in sorted(os.listdir('plugins'))])",
    "glob": "import glob; mix(sorted(glob.glob('**/*.csv', recursive=True)))",
    "rglob": "from pathlib import Path; mix(sorted(str(p) for p in Path('conf').rglob('*')))",
    "resource": "from importlib import resources; mix((resources.files('pkg') / 'table.txt').read_text())",
    "pkgutil": "import pkgutil, pkg; mix(sorted(m.name for m in pkgutil.iter_modules(pkg.__path__)))",
    "child": "mix(subprocess.run(['cat', 'data/child.txt'], capture_output=True).stdout)",
    "shell": "mix(subprocess.run('cat conf/* | sort; test -e flag && echo on', shell=True, capture_output=True).stdout)",
    "script": "mix(subprocess.run(['./tools/run.sh'], capture_output=True).stdout)",
    "python_child": "mix(subprocess.run([sys.executable, '-c', 'import pkg.core as c; print(c.LEVEL)'], capture_output=True).stdout)",
    "by_c": "import ctypes; c = ctypes.CDLL(None); f = c.open(b'data/c.bin', 0); b = ctypes.create_string_buffer(64); n = c.read(f, b, 64); mix(n, b.raw[:max(n, 0)])",
    "mmap": "import mmap; f = open('data/map.bin', 'rb'); m = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ); f.close(); mix(m[:])",
    "env_file": "[os.environ.__setitem__(*l.split('=', 1)) for l in open('.env').read().split()]; mix(os.environ.get('RATE'))",
    "site": "import site; site.addsitedir('vendor'); mix(sys.path[-2:]); import extra; mix(extra.Y)",
    "vendor": "sys.path.insert(0, 'vendor'); import helper; mix(helper.Z)",
    "json_import": "import json; mix(json.dumps([1]), hasattr(json, 'MINE'))",
    "source": "import inspect, pkg.core; mix(inspect.getsource(pkg.core.step))",
    "doc": "import pkg.core; mix(pkg.core.step.__doc__)",
    "line": "import pkg.core; mix(pkg.core.step.__code__.co_firstlineno)",
    "exec_text": "scope = {}; exec(text('pkg/version.py'), scope); mix(scope.get('V'))",
    "submodule": "mix(os.path.exists('third'), os.listdir('third'))",
    "rename": "os.rename('data/move.txt', 'moved'); mix(text('moved'))",
    "hardlink": "os.link('data/hard.txt', 'hard2'); mix(text('hard2'))",
    "made_link": "os.symlink('data', 'made'); mix(text('made/extra.csv'))",
    "chdir": "os.chdir('conf'); mix(text('a.json')); os.chdir('..')",
    "dirfd": "d = os.open('data', os.O_RDONLY); f = os.open('train.csv', os.O_RDONLY, dir_fd=d); mix(os.read(f, 99))",
    "thread": "import threading; t = threading.Thread(target=lambda: mix(text('data/thread.txt'))); t.start(); t.join()",
    "fork": "forked(lambda: text('data/fork.txt'))",
    "proc": "mix(text('/proc/self/cwd/data/proc.txt'))",
    "absent": "mix(text('data/none.txt'))",
    "zip": "import zipimport; mix(sorted(n for n in os.listdir('.') if n.endswith('.zip')))",
}  # fmt: skip
CORE = '''\
"""Core."""
import warnings

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


def warn():
    for _ in range(2):
        warnings.warn("odd"); warnings.warn("odd")


def checked(x):
    assert x > 100
    return x


def generate():
    yield LEVEL


def lazily():
    yield 1


def outer(x):
    def inner(z):
        """Within."""
        return z + LEVEL

    def unused(z):
        return z - x

    return inner(x)


class Net:
    """A net."""

    rate = LEVEL

    def value(self):
        return self.rate  # the rate

    def unused(self):
        return super().__init__()
'''
SCOPED = """\
def scoped(q):
    def within():
        def never_called():
            return q

        return locals()

    return list(within())
"""
# What changes sources without changing what they do, or in what is seldom carried out.
QUIET = {
    "docstring": ("pkg/core.py", "One step", "A step"),
    "class-docstring": ("pkg/core.py", "A net", "The net"),
    "no-docstring": ("pkg/core.py", '    """One step."""\n', ""),
    "no-class-docstring": ("pkg/record.py", '    """A row."""\n', ""),
    "module-docstring": ("pkg/own.py", "Own words", "Other words"),
    "annotation": ("pkg/core.py", "x: int", "x: float"),
    "field-annotation": ("pkg/record.py", "a: int", "a: str"),
    "local-annotation": ("pkg/core.py", "y: int", "y: float"),
    "no-local-annotation": ("pkg/core.py", "y: int =", "y ="),
    "formatting": ("pkg/core.py", "y * LEVEL", "(\n        y\n        * LEVEL)"),
    "lines": ("pkg/core.py", '("odd"); warn', '("odd")\n        warn'),
    "never": ("pkg/core.py", "step(x) + 1", "step(x) + 2"),
    "never-default": ("pkg/core.py", "k=1", "k=2"),
    "never-generator": ("pkg/core.py", "return step(x) + 1", "yield step(x)"),
    "never-late": ("pkg/late.py", "x - LEVEL", "x - 2 * LEVEL"),
    "late": ("pkg/late.py", "x + LEVEL", "x + 2 * LEVEL"),
    "late-comment": ("pkg/late.py", "# later", "# much later"),
    "generator": ("pkg/core.py", "yield 1", "yield 2"),
    "no-generator": ("pkg/core.py", "yield 1", "return 2"),
    "started": ("pkg/core.py", "yield LEVEL", "yield LEVEL + 1"),
    "method": ("pkg/core.py", "return self.rate", "return self.rate + 1"),
    "unused-method": ("pkg/core.py", "return super().__init__()", "return 1"),
    "inner": ("pkg/core.py", "z + LEVEL", "z + LEVEL + 1"),
    "inner-unused": ("pkg/core.py", "z - x", "z"),
    "inner-scope": ("pkg/scoped.py", "            return q", "            return 1"),
    "renamed": ("pkg/core.py", "y: int = x\n    return y", "v: int = x\n    return v"),
    "assert": ("pkg/core.py", "x > 100", "x > 10"),
    "escape": ("pkg/core.py", "One step", "One \\\\d step"),
    "broken": ("pkg/late.py", "x - LEVEL", "x -"),
    "outside": ("pkg/late.py", "    return x - LEVEL", "    x = [nonlocal_ for y in x]\n    nonlocal x"),
}  # fmt: skip
ADDED = (
    "json.py", "random.py", "pkg.py", "pkg/sub.py", "pkg/core/__init__.py", "accel.py",
    "accel/__init__.py", "space/__init__.py", "space/part/__init__.py", "sitecustomize.py",
    "usercustomize.py", "conf/local.json", "conf/zz.json", "cache/x", "setup.cfg", "pkg/setup.cfg",
    "plugins/zz.py", "vendor/helper.py", "vendor/more.pth", "vendor/extra/__init__.py", "flag",
    "data/none.txt", "data/more.csv", "docs/new.md", "tests/test_new.py", "pkg/new.py", "a.zip",
    "pkg/sub/mod/__init__.py", "pkg/core.so", "extra.py", "helper.py", "hashlib.py", "README.txt",
    "pkg/__init__.pyc", "pkg/sub/setup.cfg", "docs/deep/er/file.txt", "inspect.py", "Data/train.csv",
)  # fmt: skip
RESERVED = ".gitattributes"
# Those that read no source as text and look at no code; so many of the trainings do only these.
PLAIN = [
    "import", "lazy", "namespace", "data", "link", "exists", "resource", "child", "python_child",
    "unstarted", "started", "method", "by_name", "nested", "scopes", "own_doc", "repr", "dataclass",
    "fork_import", "thread_import", "fork_call", "closed_call", "class_doc", "doc", "hints",
    "reload", "json_import", "env_file", "vendor",
]  # fmt: skip
PLAINLY = 0.6


def base(rng: random.Random) -> Tree:
    number = lambda: rng.randrange(10**6)  # noqa: E731
    texts = {
        "pkg/__init__.py": f"# package\nNAME = {number()}\n",
        "pkg/core.py": CORE.replace("NUMBER", str(number())),
        "pkg/scoped.py": SCOPED,
        "pkg/own.py": '"""Own words."""\nTEXT = __doc__\n',
        "pkg/record.py": f"""\
import dataclasses


@dataclasses.dataclass
class Row:
    \"\"\"A row.\"\"\"

    a: int
    b: float = {number()}
""",
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
        "tools/other.py": "pass\n", "examples/demo.py": "pass\n",
    }  # fmt: skip
    tree = {path: ("100644", text.encode()) for path, text in texts.items()}
    tree["tools/run.sh"] = ("100755", b"#!/bin/sh\n. ./tools/lib.sh\n")
    tree["current"] = ("120000", b"data/train.csv")
    tree["latest"] = ("120000", b"data")
    return tree


def mutate(tree: Tree, rng: random.Random) -> tuple[str, Tree]:
    """One commit's change, and what it was."""
    new = dict(tree)
    files = [p for p, (mode, _) in tree.items() if mode.startswith("100")]
    path = rng.choice(files)
    mode, content = new[path]
    kind = rng.choice([
        "edit", "edit", "edit", "comment", "blank", "delete", "add", "add", "add",
        "case", "mode", "to-link", "retarget", "submodule", "to-folder", "move", "attributes",
        "swap", "folder-link", "swap-links",
        *["words"] * 6, *["quiet"] * 24,
    ])  # fmt: skip
    match kind:
        case "quiet":
            kind = rng.choice(sorted(QUIET))
            path, old, text = QUIET[kind]
            mode, content = tree[path]
            assert old.encode() in content, kind
            new[path] = (mode, content.replace(old.encode(), text.encode()))
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
            new[folder + RESERVED] = ("100644", b"* text eol=crlf\n")
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


def script(rng: random.Random) -> str:
    """A training that does some of the features, in some order."""
    among = PLAIN if rng.random() < PLAINLY else sorted(FEATURES)
    chosen = rng.sample(among, rng.randint(2, 8))
    lines = [
        f"try:\n    {FEATURES[name]}\nexcept Exception as e:\n    mix({name!r}, type(e).__name__)"
        for name in chosen
    ]
    return "\n".join([HEAD, *lines, "print(state.hexdigest())\n"])
