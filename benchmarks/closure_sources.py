"""Sources of the generated repositories (`closure_worlds.py`), and of what lies beside them."""

from __future__ import annotations

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
# Sources that past faults were about. Each number 1 is one that a mutation changes.
OTHERS = {
    "pkg/lives.py": """\
import weakref


class T:
    pass


KEEP = []


def outer():
    t = T()

    def never():
        return t

    KEEP.append(never)
    return weakref.ref(t)


def noted():
    t = T()

    def inner():
        x: t = 1
        return x

    KEEP.append(inner)
    return weakref.ref(t)
""",
    "pkg/local.py": """\
def outer():
    T = 5

    def inner():
        x: T = 1
        return len(locals())

    return inner()


def names(q):
    def within():
        def never():
            return q

        return sorted(
locals())

    return within()
""",
    "pkg/hooked.py": """\
import sys

seen = [0]


def hook(event, args):
    if event == "closure.test":
        seen[0] += 1


sys.addaudithook(hook)
""",
    "pkg/shadow.py": """\
class f:
    pass


def outer():
    global f
    def f():
        return 1
    return f()
""",
    "pkg/statics.py": "class C:\n    low = 3\n\n    def f(self):\n        self.a = 1\n",
    "pkg/meta.py": """\
class Meta(type):
    def __new__(mcs, name, bases, space):
        made = super().__new__(mcs, name, bases, space)
        made.SEEN = [(k, v) for k, v in space.items() if isinstance(v, (int, tuple))]
        return made


class C(metaclass=Meta):
    def f(self):
        self.b = 1
""",
    "pkg/within.py": """\
class C:
    SUM = sum(v for v in locals().values() if v.__class__ is int)
""",
    "pkg/greek.py": "def \u03bb():\n    return 1\n",
    "pkg/long.py": f"def {chr(955) * 2000}():\n    return 1\n",
    "odd\x1f/strange.py": "def f():\n    return 1\n",
    "pkg/ident.py": 'ID = "$Id$"\n\n\ndef f():\n    return 1\n',
    "pkg/tasks.py": """\
import asyncio
import time


async def main():
    return repr(asyncio.current_task())


async def value():
    return 1


async def slow():
    time.sleep(0.02)


def handle():
    loop = asyncio.new_event_loop()
    said = repr(loop.call_soon(handle))
    loop.close()
    return said
""",
    "pkg/collected.py": """\
import os


def never():
    return 1


def waiting(box, done):
    try:
        yield
    finally:
        done[0] += 1


def ended():
    done = [0]
    for _ in range(1500):
        box = []
        box.append(waiting(box, done))
        next(box[0])
        box.append(box)
    return done[0]


def closed():
    for _ in range(400):
        box = [open(os.devnull)]
        box.append(box)
    return os.dup(0)


def flushed():
    for i in range(250):
        box = [open(f"o{i}", "w")]
        box[0].write("1")
        box.append(box)
    return sum(os.path.getsize(f"o{i}") for i in range(250))
""",
    "pkg/same.py": "SAME = 1\n",
    "pkg/other.py": "SAME = 1\n",
    "pkg/frames.py": """\
BIG = 12345678901234567890


def outer():
    T = 5

    def inner():
        def never():
            return T

        raise ValueError

    inner()


def made():
    yield


def constant():
    return 12345678901234567890
""",
    "pkg/logs.py": """\
import logging

NOISE = {"created", "msecs", "relativeCreated", "thread", "process", "taskName"}
log = logging.getLogger("closures")
kept = []


class Keep(logging.Handler):
    def emit(self, record):
        kept.append({k: v for k, v in vars(record).items() if k not in NOISE})


def where():
    return log.findCaller()


def record():
    log.addHandler(Keep())
    log.error("odd")
    return sorted(map(str, kept[-1].items()))
""",
    "pkg/cased.py": """\
import unittest


class Case(unittest.TestCase):
    def test_it(self):
        """ + '"""Tried."""' + """
""",
    "pkg/shell.py": """\
import cmd
import io


class Shell(cmd.Cmd):
    def do_say(self, words):
        """ + '"""Says it."""' + """


def told():
    out = io.StringIO()
    Shell(stdout=out).onecmd("help say")
    return out.getvalue()
""",
    "pkg/ends.py": """\
import os


class End:
    def value(self):
        return 1

    def __del__(self, write=os.write):
        write(1, f"{self.state.hexdigest()} {self.value()}\\n".encode())


KEEP = End()
""",
    "pkg/deep.py": """\
def leaf():
    return 1


def dive():
    try:
        return dive()
    except RecursionError:
        return leaf()
""",
    "variants/code/moved.py": "def f():\n    return 1\n",
}  # fmt: skip
LOOKS = """\
def doc(thing):
    return thing.__doc__


def line(function):
    return function.__code__.co_firstlineno


def consts(function):
    return repr(function.__code__.co_consts)
"""
RULES = "made = thing.__doc__, function.__code__.co_firstlineno\n"
HOOKS = """\
import sys

seen = []


def add(function):
    sys.addaudithook(lambda e, a: seen.append(function(*a)) if e == "closure.test" else None)
"""
GRAPHS = """\
class jit:
    def trace(function):
        return function.__code__.co_firstlineno
"""
TOOL = """\
#!/usr/bin/env python3
import pkg.core
print(pkg.core.step.__doc__, pkg.core.step.__code__.co_firstlineno)
"""
