"""What trainings do with their repository, and small changes by which each would be deceived, for
`reuse_worlds.py` to put together."""

# ruff: noqa: E501 (one feature a line)

from __future__ import annotations

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
    "own_file": "import pkg.core; mix(text(pkg.core.__file__))",
    "source_size": "mix(os.path.getsize('pkg/core.py'), os.stat('pkg/own.py').st_size)",
    "sizes": "mix(subprocess.run('cat pkg/*.py | wc -c; ls -s --block-size=1 pkg', shell=True, capture_output=True).stdout)",
    "printed_traceback": "mix(subprocess.run([sys.executable, '-c', 'import pkg.core as c; c.fail()'], capture_output=True).stderr)",
    "isolated": "mix(subprocess.run([sys.executable, '-I', '-c', 'import sys; sys.path.insert(0, chr(46)); import pkg.core as c; print(c.step(2))'], capture_output=True).stdout)",
    "stripped": "mix(subprocess.run([sys.executable, '-OO', '-c', 'import pkg.core as c; print(c.checked(2))'], capture_output=True).stdout)",
    "loader": "import pkg.core; mix(pkg.core.__loader__.get_data(pkg.core.__file__)[:40])",
    "compiled": "import pkg.core; exec(compile(text('pkg/core.py'), 'pkg/core.py', 'exec'), {'__name__': 'x'}); mix(1)",
    "by_name": "import pkg.core; mix(getattr(pkg.core, 'st' + 'ep')(5))",
    "fork_import": "forked(lambda: __import__('pkg.late').late.late(2))",
    "thread_import": "import threading; t = threading.Thread(target=lambda: mix(__import__('pkg.late').late.late(3))); t.start(); t.join()",
    "rewrites": "import re; f = 'pkg/late.py'; t = open(f).read(); open(f, 'w').write(re.sub('#.*', '', t) + 'N = %d' % len(t)); import pkg.late; mix(pkg.late.N)",
    "compiles": "import py_compile, pkg.own; py_compile.compile('pkg/late.py'); import pkg.late; mix(pkg.late.late(1))",
    "linked_code": "os.symlink('pkg', 'alias'); import alias.late; mix(alias.late.late(2))",
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
    "rename_folder": "os.rename('variants/a', 'active'); mix(text('active/v'))",
    "rename_deep": "os.rename('variants/deep', 'act'); mix(text('act/x/y'))",
    "move_code": "import shutil; shutil.move('variants/code', 'mv'); sys.path.insert(0, 'mv'); import moved; mix(moved.f())",
    "mv": "subprocess.run(['mv', 'variants/sh', 'sh2']); mix(text('sh2/v'))",
    "exchange": "import ctypes; ctypes.CDLL(None).renameat2(-100, b'variants/left', -100, b'variants/right', 2); mix(text('variants/left/v'))",
    "linked_link": "os.mkdir('work'); os.path.exists('work/extra.csv'); os.rmdir('work'); os.link('latest', 'work', follow_symlinks=False); mix(text('work/extra.csv'))",
    "relinked": "os.symlink('docs', 'l1'); os.path.exists('l1/a.json'); os.unlink('l1'); os.symlink('conf', 'l1'); mix(text('l1/a.json'))",
    "ident": "import pkg.ident; mix(pkg.ident.ID)",
    "separator": "sys.path.insert(0, 'odd' + chr(31)); import strange; mix(strange.f())",
    "filecmp": "import filecmp, pkg.same, pkg.other; mix(filecmp.cmp(pkg.same.__file__, pkg.other.__file__))",
    "zipped": "sys.path.insert(0, 'deps.zip'); import pkg.core, looks; mix(looks.doc(pkg.core), looks.line(pkg.core.step))",
    "wheel": "sys.path.insert(0, 'tools/deps'); import pkg.core, looks; mix(looks.doc(pkg.core), looks.line(pkg.core.step))",
    "generated": "import zlib; f = open('gen.py', 'wb'); f.write(zlib.decompress(text('tools/gen.z'))); f.close(); import gen, pkg.core; mix(gen.doc(pkg.core), gen.line(pkg.core.step))",
    "at_exit": "import atexit, pkg.late; atexit.register(lambda: print(state.hexdigest(), pkg.late.late(7)))",
    "signal": "import signal, pkg.late; signal.signal(signal.SIGUSR1, lambda *a: mix(pkg.late.late(8))); os.kill(os.getpid(), signal.SIGUSR1)",
}  # fmt: skip
# Small changes of sources.
QUIET = {
    "docstring": ("pkg/core.py", "One step", "A step"),
    "annotation": ("pkg/core.py", "x: int", "x: float"),
    "formatting": ("pkg/core.py", "y * LEVEL", "(\n        y\n        * LEVEL)"),
    "never": ("pkg/core.py", "step(x) + 1", "step(x) + 2"),
    "late": ("pkg/late.py", "x + LEVEL", "x + 2 * LEVEL"),
    "late-comment": ("pkg/late.py", "# later", "# much later"),
    "generator": ("pkg/core.py", "yield 1", "yield 2"),
    "strange": ("odd\x1f/strange.py", "return 1", "return 2"),
    "moved": ("variants/code/moved.py", "return 1", "return 2"),
    "same": ("pkg/same.py", "SAME = 1\n", "SAME = 1\n# words\n"),
}  # fmt: skip
# What a feature would be deceived by, were it not noticed: kinds of QUIET, words before a source
# (#), files to edit, or to add (+).
LOOKED_AT = ("#pkg/core.py", "docstring", "never")
FOILS: dict[str, tuple[str, ...]] = {
    "try_import": ("+accel.py",),
    "linked_folder": ("data/extra.csv",),
    "walk_up": ("+pkg/setup.cfg",),
    "own_file": LOOKED_AT,
    "source_size": LOOKED_AT,
    "sizes": LOOKED_AT,
    "printed_traceback": LOOKED_AT,
    "isolated": ("pkg/core.py",),
    "stripped": ("pkg/core.py",),
    "loader": LOOKED_AT,
    "compiled": ("pkg/core.py",),
    "by_name": LOOKED_AT,
    "compiles": ("late",),
    "linked_code": ("late",),
    "size": ("data/extra.csv",),
    "plugins": ("plugins/one.py",),
    "glob": ("+data/more.csv",),
    "rglob": ("+conf/zz.json",),
    "pkgutil": ("+pkg/new.py",),
    "shell": ("conf/b.json", "+flag"),
    "script": ("tools/lib.sh",),
    "by_c": ("data/c.bin",),
    "mmap": ("data/map.bin",),
    "site": ("vendor/extra.py",),
    "source": LOOKED_AT,
    "doc": LOOKED_AT,
    "line": LOOKED_AT,
    "exec_text": ("pkg/version.py",),
    "submodule": ("+third",),
    "rename": ("data/move.txt",),
    "hardlink": ("data/hard.txt",),
    "made_link": ("data/extra.csv",),
    "chdir": ("conf/a.json",),
    "dirfd": ("data/train.csv",),
    "thread": ("data/thread.txt",),
    "fork": ("data/fork.txt",),
    "proc": ("data/proc.txt",),
    "absent": ("+data/none.txt",),
    "zip": ("+a.zip",),
    "rename_folder": ("variants/a/v",),
    "rename_deep": ("variants/deep/x/y",),
    "move_code": ("moved", "#variants/code/moved.py"),
    "mv": ("variants/sh/v",),
    "exchange": ("variants/right/v",),
    "linked_link": ("data/extra.csv",),
    "relinked": ("conf/a.json",),
    "ident": ("#pkg/ident.py",),
    "separator": ("strange",),
    "filecmp": ("same",),
    "at_exit": ("late",),
    "signal": ("late",),
}
