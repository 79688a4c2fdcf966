"""Sources that were only imported: what is told of them, and when they count by their code."""

from __future__ import annotations

import os
import py_compile
import shutil
import subprocess
import sys
import zipfile
from io import BytesIO
from pathlib import Path
from unittest import mock

import pytest
from conftest import PERMIT

import celedger
from celedger import config
from celedger import suite as suites
from celedger.child import importing
from celedger.ledger import Ledger
from celedger.model import Commit, OutcomeKind, Task
from celedger.repo import Repository
from celedger.system import process
from celedger.system.gate import Gate
from celedger.trial import looking
from celedger.trial.closure import Closures, Observed
from celedger.trial.imports import Imports, is_data
from celedger.trial.workplace import choose_tasks, set_bench
from tests.conftest import SUITE, Project, make_project
from tests.trial.test_closures import trained

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="recording is Linux's")

CORE = '''\
"""Core."""


def step(x):
    """One step."""
    return x * 2  # slowly


def never(x):
    return (lambda: x)()


def fail():
    raise ValueError
'''


def pythons() -> list[str]:
    """This one, and a newer one that has `sys.monitoring`, where there is one."""
    found = [sys.executable]
    for name in ("python3.12", "python3.13"):
        path = shutil.which(name)
        asked = "import sys; print(sys.executable) if hasattr(sys, 'monitoring') else 1 / 0"
        if path is not None:
            done = subprocess.run([path, "-c", asked], capture_output=True, text=True)
            if done.returncode == 0:
                return [*found, done.stdout.strip()]
    versions = sorted(Path.home().glob(".pyenv/versions/3.1[23]*/bin/python"))
    return [*found, *map(str, versions[:1])]


PYTHONS = pythons()


def told(tmp_path: Path, code: str, python: str = sys.executable) -> Imports:
    """What is known of the sources of a tree after a programme."""
    tree, home = tmp_path / "tree", tmp_path / "home"
    (tree / "pkg").mkdir(parents=True)
    home.mkdir()
    (tree / "pkg" / "__init__.py").touch()
    (tree / "pkg" / "core.py").write_text(CORE)
    (tree / "pkg" / "late.py").write_text("X = 1\n")
    (tree / "link.py").symlink_to("pkg/late.py")
    shutil.copyfile(
        Path(celedger.__file__).parent / "child" / "importing.py", home / "sitecustomize.py"
    )
    (tmp_path / "main.py").write_text(code)
    env = {
        "PATH": os.environ["PATH"], "PYTHONPATH": f"{tree}:{home}", "CELEDGER_SOURCES": str(tree),
        "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip
    log, reads = tmp_path / "log", tmp_path / "reads"
    done = process.run(
        [python, str(tmp_path / "main.py")], cwd=tree, env=env, log=log, permit=PERMIT,
        reads=process.Reads(tree, reads), timeout=120,
    )  # fmt: skip
    assert done.ok, log.read_text()
    observed = Observed()
    observed.take_in(reads)
    assert not observed.unknown
    return observed.imports


# As scripts in a folder of their own do.
DOTTED = """\
import os, sys
sys.path.insert(0, os.path.abspath("pkg") + "/../.")
import pkg.core
pkg.core.step(1)
assert ".." in pkg.core.__file__
"""


@pytest.mark.parametrize(
    "code",
    [
        "import pkg.core; pkg.core.step(1)",
        "import os, pkg.core; os.path.realpath(pkg.core.__file__); os.path.exists('pkg/core.py')",
        "import os\nif os.fork() == 0: import pkg.core; os._exit(0)\nos.wait()",
        "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import pkg.core'])",
        DOTTED,
    ],
)
def test_a_source_that_is_imported_is_known_for_it(tmp_path: Path, code: str) -> None:
    imports = told(tmp_path, code, PYTHONS[-1])
    assert b"pkg/core.py" in imports.imported
    assert b"pkg/core.py" not in imports.text
    assert set(imports.events() or ()) <= {b"pkg/__init__.py", b"pkg/core.py"}


# A Python that starts without `site`.
UNSEEN = """\
import subprocess, sys
subprocess.run([sys.executable, '-S', '-c', 'import sys; sys.path.insert(0, ""); import pkg.core'])
"""


@pytest.mark.parametrize(
    "code",
    [
        "import pkg.core; open(pkg.core.__file__).read()",
        "import inspect, pkg.core; inspect.getsource(pkg.core.step)",
        "import linecache, pkg.core; linecache.getline(pkg.core.__file__, 1)",
        "import pkg.core; pkg.core.__loader__.get_data(pkg.core.__file__)",
        "import pkg.core, logging\ntry: pkg.core.fail()\nexcept ValueError: logging.exception('x')",
        "import pkg.core, os; os.system('cat pkg/core.py > /dev/null')",
        "import pkg.core, os; os.system('ls -l pkg > /dev/null')",
        UNSEEN,
        "import os\nif os.fork() == 0: os.execlp('cat', 'cat', 'pkg/core.py')\nos.wait()",
        "import pkg.core, runpy; runpy.run_path('pkg/core.py')",
        "import py_compile; py_compile.compile('pkg/core.py'); import pkg.core",
        "import os; os.symlink('pkg', 'alias'); import alias.core",
    ],
)
def test_a_source_that_is_read_in_any_other_way_is_known_for_it(tmp_path: Path, code: str) -> None:
    assert b"pkg/core.py" in told(tmp_path, code).text


def test_a_source_imported_by_a_link_counts_by_its_text(tmp_path: Path) -> None:
    imports = told(tmp_path, "import link, pkg.late")
    assert {b"link.py", b"pkg/late.py"} <= imports.text


@pytest.mark.skipif(len(PYTHONS) < 2, reason="there is no Python with sys.monitoring")
def test_newer_pythons_tell_what_they_entered(tmp_path: Path) -> None:
    code = "import pkg.core, os\nfor _ in range(3): pkg.core.step(1)\n"
    code += (
        "if os.fork() == 0:\n os.closerange(3, 99); pkg.core.never(1); os.kill(os.getpid(), 9)\n"
    )
    imports = told(tmp_path, code + "os.wait()", PYTHONS[1])
    events = imports.events()[b"pkg/core.py"]
    assert set(events) == {
        ("<module>", 1), ("step", 4), ("never", 9), ("never.<locals>.<lambda>", 10),
    }  # fmt: skip
    assert not imports.reader


@pytest.mark.skipif(len(PYTHONS) < 2, reason="there is no Python with sys.monitoring")
def test_who_takes_code_for_data_is_noticed(tmp_path: Path) -> None:
    code = "import dis, pkg.core; list(dis.get_instructions(pkg.core.never))"
    assert told(tmp_path, code, PYTHONS[1]).reader


HIDING = [
    "pkg.core.fail.__code__ = pkg.core.fail.__code__.replace(co_filename='<x>')",
    "sys.setprofile(lambda *_: None)",
    "def watch():\n    sys.settrace(None)\nwatch()",
    "threading.setprofile(None)",
]


@pytest.mark.skipif(len(PYTHONS) < 2, reason="there is no Python with sys.monitoring")
@pytest.mark.parametrize("code", HIDING)
def test_who_hides_what_is_entered_is_noticed(tmp_path: Path, code: str) -> None:
    assert told(tmp_path, f"import sys, threading, pkg.core\n{code}", PYTHONS[1]).reader


@pytest.mark.skipif(len(PYTHONS) < 2, reason="there is no Python with sys.monitoring")
def test_libraries_that_define_such_functions_hide_nothing(tmp_path: Path) -> None:
    code = "import dataclasses, dis, inspect, threading, pkg.core\n"
    code += "thread = threading.Thread(target=pkg.core.step, args=[1])\nthread.start()\n"
    code += "inspect.signature(pkg.core.step)"
    assert not told(tmp_path, code, PYTHONS[1]).reader


def test_an_environment_keeps_its_own_sitecustomize(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "sitecustomize.py").write_text("import builtins; builtins.MINE = __name__\n")
    code = f"import os, sys, subprocess\nos.environ['PYTHONPATH'] += ':{other}'\n"
    code += "asked = 'import builtins, sys; print(MINE, sys.modules[MINE].__file__)'\n"
    code += "print(subprocess.run([sys.executable, '-c', asked], capture_output=True).stdout)\n"
    code += "assert 'sitecustomize' not in sys.modules"
    told(tmp_path, code)
    assert f"sitecustomize {other}/sitecustomize.py" in (tmp_path / "log").read_text()


def test_words_that_get_at_code() -> None:
    assert not looking.at_code(b"import torch\nfrom model import status, statistics\n")
    for text in (
        b"e.__traceback__.tb_lineno", b"f.__code__", b"import inspect", b"x.stat()",
        b"sys.addaudithook(hook)", b"builtins.compile = mine", b"__loader__.path_stats(file)",
        b"import filecmp", b"sys.exc_info()[2].tb_next", b"frame.f_locals", b"g.gi_frame",
        b"torch.jit.save(x)", b"torch.onnx.export(x)", b"repr(asyncio.current_task())",
        b"python -W error::UserWarning:model:13", b"C.__static_attributes__",
        b"import trace", b"from profile import Profile", b"log.findCaller()",
        b"sys.getrefcount(x)", b"warnings.simplefilter('error', type(w), 24)",
        b"warnings.filterwarnings('error', '', UserWarning, 'model', 24)",
        b"import logging\njson.dumps(vars(record))",
        b"import model, trace", b"import os\nimport profile as p", b"from trace import Trace",
        b"python\n-m\ntrace\n--count",
        b"from profile import run", b"repr(loop.call_soon(f))", b"future.add_done_callback(f)",
        b"len(model.__warningregistry__)", b"warnings._showwarnmsg = f", b"ctypes.pythonapi",
        b"CDLL(None).PyFrame_GetLineNumber", b"t.gettarinfo('model.py').size",
        b"asyncio.run(main(), debug=True)", b"PYTHONASYNCIODEBUG", b"python -X dev fit.py",
        b"ZipInfo.from_file('model.py')", b"logging.captureWarnings(True)",
        b"import logging\nclass H(logging.Handler):\n    def emit(self, r): print(r)",
        b"import logging\nlogging.handlers.SocketHandler('h', 1)",
        b"CDLL(None).stat64(b'model.py')", b"fs.get_file_info('model.py')", b"libc.__xstat(1, n)",
    ):  # fmt: skip
        assert looking.at_code(text), text
    assert not looking.at_code(b"warnings.simplefilter('ignore', Odd)\nf(1, 2)\nimport logging")
    for text in (
        b"import torch\nx = torch.trace(y)", b"from torch.profiler import profile",
        b"if mode == 'trace': pass", b"def call_attention(x): pass", b"Tokenizer.from_file('t')",
    ):  # fmt: skip
        assert not looking.at_code(text, (3, 13)), text
    for text in (
        b"locals()", b"C.__dict__", b"vars(C)", b"class M(type):", b"f(metaclass=M)", b"getmembers",
        b"class C:\n    n = len(locals())", b"from abc import ABCMeta as M\nB = M('B', (), {})",
        b"class M(EnumType): pass", b"class M(type(Base)): pass", b"ModelMetaclass",
    ):  # fmt: skip
        assert looking.at_code(text, (3, 13)), text
        assert not looking.at_code(text, (3, 12)), text
    parsed = b"def main():\n    args = p.parse_args()\n    args.lr = 1\n"
    parsed += b"    dump(vars(args), args=args)\n"
    for text in (
        parsed, parsed.replace(b"args =", b"args, _ =").replace(b"parse_", b"parse_known_"),
        b"f(**vars(p.parse_args()))",
    ):  # fmt: skip
        assert not looking.at_code(text, (3, 13)), text
    for text in (
        parsed + b"def show(args):\n    vars(args)\n", parsed + b"import model as args\n",
        parsed + b"class args: pass\n", parsed + b"from model import *\n",
        parsed + b"for args in classes: pass\n",
        parsed + b"# vars(C)", parsed.replace(b"vars(args)", b"vars(other)"), parsed + b"(",
        parsed + b"match x:\n    case [*args]: pass\n", parsed + b"dump(args.__dict__)\n",
    ):  # fmt: skip
        assert looking.at_code(text, (3, 13)), text
    assert looking.at_docs(b"import pkg\nprint(pkg.__doc__)", pinned=True)
    assert looking.at_docs(b"exec('__doc__', vars(pkg))", pinned=True)
    assert looking.at_docs(b"python -m unittest -v", pinned=True)
    assert looking.at_docs(b"class Shell(cmd.Cmd):", pinned=True)
    own = b"import argparse\nargparse.ArgumentParser(description=__doc__)"
    assert not looking.at_docs(own, pinned=True)
    assert looking.at_docs(own, pinned=False)
    assert not looking.at_docs(b"log.info(x)\nimport numpy as np", pinned=True)
    for text in (
        b"np.info(model.step, output=b)", b"from numpy import array, info", b"numpy.lookfor('x')",
        b"class C:\n    n = locals()", b"f.__globals__.values()", b"runpy.run_module('model')",
        b"match f:\n    case object(__doc__=str(d)): pass", b"B = ABCMeta('B', (), {})",
    ):  # fmt: skip
        assert looking.at_docs(text, pinned=True), text
    assert looking.at_scopes(b"x = eval('y')")
    assert not looking.at_scopes(b"model.eval()")
    assert looking.copying([b"torch", b"numpy.libs", b"torch-2.13.dist-info"])
    assert not looking.copying([b"torch", b"docopt.py"])


@pytest.mark.parametrize(
    ("text", "looks"),
    [
        ("import weakref", True), ("len(Base.__subclasses__())", True),
        ("def __del__(self): pass", True), ("from torch.utils.weak import X", True),
        ("import gc\nn = gc.collect()", True), ("import gc\nprint(len(gc.get_stats()))", True),
        ("import gc as g", True), ("from gc import collect", True), ("f(gc)", True),
        ("__import__('gc').get_count()", True), ("model.gc.callbacks.append(f)", True),
        ("n = \\\n    gc.collect()", True), ("python -m gc", True),
        ("import gc, os\nif x:\n    gc.collect(); empty()\ngc.disable()  # gc", False),
        ("import torch\nfrom gcp import weak_supervision", False),
    ],
)  # fmt: skip
def test_who_sees_when_garbage_is_collected_is_one_that_looks(text: str, looks: bool) -> None:
    """It depends on the constants of functions that were never entered."""
    assert looking.at_scopes(text.encode()) == looks


@pytest.mark.parametrize(
    ("text", "looks"),
    [
        ("def f(b):\n    try: yield b\n    finally: n.append(1)", True),
        ("def f(b):\n    with torch.no_grad():\n        for x in b: yield x", True),
        ("class C:\n    async def f(b):\n        async with b: pass", True),
        ("def f[T](b):\n    try: yield b\n    finally: n = 1", True),  # newer than this Python
        ("def f(b):\n    with open(b) as g:\n        for x in g: yield x", False),
        ("@contextmanager\ndef f(b):\n    try: yield b\n    finally: n = 1", False),
        ("stack.enter_context(f())", True), ("f().__enter__()", True),
        ("def f(b):\n    for x in b: yield x\ntry: f()\nexcept OSError: pass", False),
        ("The yield was open (in May)\nawait with patience\n", False),
        ("f = open('x', 'w')", True), ("p.open('ab')", True), ("open('x', mode=m)", True),
        ("with open('x', 'w') as f: f.write(y)", False), ("Image.open(path)", False),
        ("open('x', 'rb'), gzip.open(p, 'rt'), tarfile.open(p, 'r:gz')", False),
        ("t = tempfile.TemporaryDirectory()", True), ("f.fileno()", True), ("os.dup(0)", True),
    ],
)  # fmt: skip
def test_what_the_collector_ends_or_closes_is_noticed(text: str, looks: bool) -> None:
    assert looking.at_scopes(text.encode()) == looks


@pytest.mark.parametrize(
    ("text", "executes"),
    [
        ("eval(text)", True), ("list(map(exec, rows))", True), ("run = eval\n", True),
        ("runpy.run_path('x.log')", True), ("subprocess.run(['sh', 'x.log'])", True),
        ("model.eval()", False), ("torch.compile(model)", False), ("compile = True", False),
        ("phase in ('train', 'eval')", False), ("python fit.py --eval", False),
    ],
)  # fmt: skip
def test_who_carries_out_a_text_is_noticed(text: str, executes: bool) -> None:
    assert looking.executes(text.encode()) == executes


@pytest.mark.parametrize(("name", "looks"), [("zipped.py", True), ("array.npy", False)])
def test_an_archive_with_modules_is_one_that_looks(name: str, looks: bool) -> None:
    file = BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, "X = 1\n" * 50)
    assert looking.at_code(file.getvalue()) == looks


def test_sources_outside_of_the_tree_are_told_with_scripts_and_compiled_ones(
    tmp_path: Path,
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "helper.py").touch()
    py_compile.compile(str(other / "helper.py"), doraise=True)
    (other / "tool").write_text("#!/bin/sh\n")
    (other / "tool").chmod(0o755)
    code = f"import os, sys; sys.path.insert(0, '{other}'); import helper\n"
    code += f"os.path.exists('{other}/no.json'); os.system('{other}/tool')"
    foreign = told(tmp_path, code).foreign
    assert {os.fsencode(other / name) for name in ("helper.py", "tool")} <= foreign
    assert os.fsencode(other / "no.json") not in foreign
    assert list(looking.texts([other / "gone.py"])) == [None]


def test_sources_outside_of_the_tree_are_told_whatever_they_are_called(tmp_path: Path) -> None:
    library = tmp_path / "lib" / "python3.7"  # a standard library's name, without `os`
    library.mkdir(parents=True)
    (library / "helper.py").touch()
    (tmp_path / "tool").write_text("X = 1\n")
    (tmp_path / "numbers").write_bytes(b"\0" * 8)
    os.mkfifo(tmp_path / "pipe")
    for name in ("deps.pack", "array.npz"):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr("zipped.py", "X = 1\n")
    code = f"import os, sys; os.chdir({str(tmp_path)!r}); sys.path.append({str(library)!r})\n"
    code += "import helper; [open(n, 'rb').close() for n in ('tool', 'numbers', 'deps.pack', "
    code += "'array.npz')]; os.close(os.open('pipe', os.O_RDONLY | os.O_NONBLOCK))"
    foreign = told(tmp_path, code).foreign
    searched = (path for path in map(Path, map(os.fsdecode, foreign)) if not is_data(path))
    found = {path.name for path in searched}
    assert found >= {"helper.py", "tool", "deps.pack"}
    assert found.isdisjoint({"numbers", "array.npz", "pipe"})


def test_a_message_that_cannot_be_said_is_told_to_be_lost() -> None:
    said: list[str] = []

    def stat(path: str) -> None:
        os.fsencode(path)
        if "\0" in path:
            raise ValueError
        said.append(path)

    for text in ("x", "\udc00", "\u03bb" * 2000, "a\0b"):
        importing.say("entered", text, stat)
    lost = importing.SAYS + "lost/"
    assert said == [importing.SAYS + "entered/x", lost, lost, lost]


def test_what_was_entered_is_unknown_where_a_path_has_the_separator() -> None:
    assert Imports(entered={b"a.py\x1f3\x1ff"}).events() == {b"a.py": [("f", 3)]}
    assert Imports(entered={b"a\x1f.py\x1f3\x1ff"}).events() is None


# --- through the whole


LIBRARY = '''\
"""A model."""


def level(seed: int) -> float:
    """The loss."""
    found: float = 1.0  # known
    return found


def other():
    return 1
'''
SCRIPT = """\
from celedger.child import log
import model
log(epoch=0, val_loss=model.level(0))
"""
QUIET = {
    "comment": ("# known", "# well known\n    # so far"),
    "docstring": ("The loss", "A loss"),
    "formatting": ("found: float = 1.0", "found = (\n        1.0)"),
}


def library(tmp_path: Path, script: str = SCRIPT, python: str = sys.executable) -> Project:
    suite = SUITE.replace('name = "tiny"\n', f'name = "tiny"\npython = "{python}"\n')
    suite = suite.replace("seeds = [0, 1]", "seeds = [0]")
    return make_project(tmp_path / "p", suite, {"fit.py": script})


def test_a_commit_of_comments_is_derived_and_says_so(tmp_path: Path) -> None:
    project = library(tmp_path)
    project.commit("one", {"model.py": LIBRARY})
    assert project.run("run", "HEAD").status == 0
    for subject, (old, new) in QUIET.items():
        project.commit(subject, {"model.py": LIBRARY.replace(old, new)})
        assert "only comments" in project.run("run", "HEAD").err, subject
    assert "only comments" in project.run("show", "HEAD").out
    assert trained(project) == 1
    project.commit("code", {"model.py": LIBRARY.replace("return 1\n", "return 2\n")})
    project.run("run", "HEAD")
    assert trained(project) == 2
    plan = project.run("bisect", "HEAD~4..HEAD~1", "--metric", "val_loss", "--dry-run")
    assert plan.status == 125
    assert "nothing that fit reads differs" in plan.err + plan.out


@pytest.mark.skipif(len(PYTHONS) < 2, reason="there is no Python with sys.monitoring")
def test_a_function_that_is_never_entered_does_not_count(tmp_path: Path) -> None:
    project = library(tmp_path, python=PYTHONS[1])
    project.commit("one", {"model.py": LIBRARY})
    assert project.run("run", "HEAD").status == 0
    project.commit("other", {"model.py": LIBRARY.replace("return 1\n", "return 2\n")})
    assert "derived" in project.run("run", "HEAD").err
    assert trained(project) == 1
    project.commit("level", {"model.py": LIBRARY.replace("1.0", "2.0")})
    project.run("run", "HEAD")
    assert trained(project) == 2


@pytest.mark.parametrize(
    "look",
    [
        "len(model.__doc__)",
        "model.level.__code__.co_firstlineno",
        "len(open(model.__file__).read())",
    ],
)
def test_what_looks_at_sources_trains_anew(tmp_path: Path, look: str) -> None:
    script = SCRIPT.replace("model.level(0)", look)
    project = library(tmp_path, script)
    project.commit("one", {"model.py": LIBRARY})
    assert project.run("run", "HEAD").status == 0
    text = LIBRARY.replace('"""A model."""', '"""Another model."""\n# and more')
    project.commit("words", {"model.py": text})
    project.run("run", "HEAD")
    assert trained(project) == 2


def test_what_git_rewrites_trains_anew(tmp_path: Path) -> None:
    project = library(tmp_path, SCRIPT.replace("model.level(0)", "len(model.VERSION)"))
    (project.root / ".git" / "info" / "attributes").write_text("*.py ident\n")
    for words in ("", "# words\n"):
        project.commit("one", {"model.py": words + 'VERSION = "$Id$"\n'})
        assert project.run("run", "HEAD").status == 0
    assert trained(project) == 2


GEN = "import model\nN = float(len(model.__doc__))\n"


def test_what_looks_from_a_file_that_nobody_keeps_trains_anew(tmp_path: Path) -> None:
    """A source that the build makes, and a programme without a suffix outside of the tree."""
    tool = tmp_path / "tool"
    tool.write_text(SCRIPT.replace("model.level(0)", "len(model.__doc__)"))
    made = 'name = "tiny"\nbuild = ["cp gen.in gen.py"]\ninputs = ["gen.in"]\n'
    text = made.replace("gen.py", "gen.txt")
    for name in ("conf", "log"):
        (tmp_path / f"gen.{name}").write_text(GEN)
    kinds = {
        "made": SUITE.replace('name = "tiny"\n', made),
        "text": SUITE.replace('name = "tiny"\n', text),
        "conf": SUITE,
        "log": SUITE,
        "tool": SUITE.replace("{suite}/fit.py", str(tool)),
    }
    for name, suite in kinds.items():
        script = SCRIPT.replace("import model", "import gen, model")
        if name in ("text", "conf", "log"):
            read = "gen.txt" if name == "text" else tmp_path / f"gen.{name}"
            script = SCRIPT.replace("import model", f"gen = open('{read}').read(); exec(gen)")
            script = script.replace("model.level(0)", "N")
        script = script.replace("model.level(0)", "gen.N")
        suite = suite.replace("seeds = [0, 1]", "seeds = [0]")
        project = make_project(tmp_path / f"p-{name}", suite, {"fit.py": script})
        project.commit("one", {"model.py": LIBRARY, "gen.in": GEN})
        assert project.run("run", "HEAD").status == 0
        project.commit("words", {"model.py": LIBRARY.replace("A model", "Another model")})
        assert project.run("run", "HEAD").status == 0
        assert trained(project) == 2


def test_two_celedgers_derive_a_trial_once(tmp_path: Path) -> None:
    project = library(tmp_path)
    project.commit("one", {"model.py": LIBRARY})
    project.commit("words", {"model.py": LIBRARY + "# words\n"})
    repository = Repository.open(project.root)
    settings = config.load(repository.root, {})
    suite = suites.load(suites.find(None, settings, repository.root))
    tasks = choose_tasks(suite, ())
    before, commit = repository.resolve("HEAD~1"), repository.resolve("HEAD")
    path = project.root / "ledger.db"
    gate = Gate.of(repository, attended=True)
    with (
        Ledger.open(path, create=True) as mine, Ledger.open(path) as other,
        set_bench(repository, mine, settings, suite, tasks, gate=gate) as bench,
        set_bench(repository, other, settings, suite, tasks, gate=gate) as second,
    ):  # fmt: skip
        assert not bench.run(before, tasks[0], 0).derived
        content = Closures.content
        met: list[Commit] = []

        def meanwhile(self: Closures, commit: Commit, task: Task, number: int) -> str:
            """The other one derives between this one's question and its answer."""
            if not met:
                met.append(commit)
                assert second.run(commit, tasks[0], 0).derived
            return content(self, commit, task, number)

        with mock.patch.object(Closures, "content", meanwhile):
            record = bench.run(commit, tasks[0], 0)
        assert met
        assert record.derived
        assert record.outcome is not None
        assert record.outcome.kind is OutcomeKind.OK
        assert [r.trial.ulid for r in mine.trials(commit=commit.sha)] == [record.trial.ulid]
