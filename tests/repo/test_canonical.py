"""The form of a source: what it leaves out, and what it must never."""

from __future__ import annotations

import pytest

from celedger.repo import canonical

START = '''\
"""Words."""
import warnings


def step(x: int) -> int:
    """One step."""
    y: int = x  # a name
    return y * 2


class Net:
    """A net."""

    rate: float = 1.0

    def unused(self):
        return super().__init__()


def lazy():
    yield 1
'''


def of(text: str, *, docs: bool = False, entered: tuple[str, ...] | None = None) -> bytes | None:
    return canonical.form(text.encode(), docs=docs, entered=entered)


def changed(old: str, new: str) -> str:
    assert old in START
    return START.replace(old, new)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("  # a name", "  # another"),
        ("\n\n\ndef step", "\n# more\n\ndef step"),
        ("y * 2", "(y\n        * 2)"),
        ("One step", "A step"),
        ('    """One step."""\n', ""),
        ('"""Words."""\n', ""),
        ("A net", "The net"),
        ("y: int", "y: float"),
        ("y: int =", "y ="),
        ("    return y", "    'a string alone'\n    return y"),
    ],
)
def test_what_no_importer_can_tell_is_left_out(old: str, new: str) -> None:
    assert of(changed(old, new)) == of(START) is not None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("y * 2", "y * 3"),
        ("y * 2", "y * 2.0"),
        ("x: int", "x: float"),  # kept in `__annotations__`
        ("rate: float", "rate: int"),
        ('    """A net."""\n', ""),  # `dataclasses` asks whether there is one
        ("import warnings", "import warnings as w"),
        ("def step", "@staticmethod\ndef step"),
        ("yield 1", "return 1"),
    ],
)
def test_what_an_importer_can_tell_is_kept(old: str, new: str) -> None:
    for entered in (None, ()):
        if (old, entered) != ("y * 2", ()):
            assert of(changed(old, new), entered=entered) != of(START, entered=entered)


def test_docstrings_count_where_they_are_asked_for() -> None:
    assert of(changed("One step", "A step"), docs=True) != of(START, docs=True)
    assert of(changed("One step", "A step"), docs=True, entered=()) != of(
        START, docs=True, entered=()
    )
    assert of(changed("# a name", "# b"), docs=True) == of(START, docs=True)


def test_functions_that_were_not_entered_count_by_their_def_alone() -> None:
    other = changed("y * 2", "y * 3")
    assert of(other, entered=()) == of(START, entered=()) is not None
    assert of(other, entered=("step#1",)) != of(START, entered=("step#1",))
    for old, new in (
        ("x: int", "x: int = 1"), ("yield 1", "return 1"), ("super().__init__()", "1"),
        ("def lazy():", "async def lazy():"),
    ):  # fmt: skip
        assert of(changed(old, new), entered=()) != of(START, entered=()), new


def test_free_names_of_a_function_count_for_those_around() -> None:
    outer = "def outer():\n    t = T()\n    def inner():\n        {}\n    return inner\n"
    entered = ("outer#1",)
    assert of(outer.format("return t"), entered=entered) != of(
        outer.format("return 1"), entered=entered
    )
    assert of(outer.format("return 2"), entered=entered) == of(
        outer.format("return 1"), entered=entered
    )
    for known in (None, entered, (*entered, "outer#1.<locals>.inner#1")):
        one, other = (of(outer.format(f"x: {word} = 1"), entered=known) for word in ("t", "int"))
        assert one != other
        assert of(outer.format("x: float = 1"), entered=known) == other
    made = "def f():\n    x: {} = 1\n    return y\n"
    assert of(made.format("(y := 1)")) != of(made.format("int"))
    nested = "class A:\n    def f(self):\n        {}\n"
    deep = "class B:\n            def g(self): super().g()"
    assert of(nested.format("super().f()"), entered=()) != of(nested.format(deep), entered=())


TWICE = """\
if platform:
    def make():
        def scale(): return 0
        return scale
else:
    def make():
        def scale(): return {}
        return scale
"""
PROPERTY = """\
class C:
    @property
    def x(self):
        def h(): return 7
        return h()
    @x.setter
    def x(self, v):
        def h(): return {}
        self.y = h()
"""


@pytest.mark.parametrize(
    ("source", "line", "name"),
    [(TWICE, 7, "make.<locals>.scale"), (PROPERTY, 8, "C.x.<locals>.h")],
)
def test_what_was_entered_in_the_second_of_a_name_counts(source: str, line: int, name: str) -> None:
    one, other = source.format(1), source.format(2)
    outer = name.partition(".<locals>")[0]
    entered = canonical.keys(one.encode(), [(name, line)])
    assert entered == (f"{outer}#2", f"{outer}#2{name[len(outer) :]}#1")
    assert of(one, entered=entered) != of(other, entered=entered)
    first = canonical.keys(one.encode(), [(outer, 2)])
    assert first == (f"{outer}#1",)
    assert of(one, entered=first) == of(other, entered=first) is not None


@pytest.mark.parametrize("yields", ["x: (yield) = 1", "g = lambda a=(yield): a"])
def test_that_a_function_is_a_generator_counts_wherever_it_yields(yields: str) -> None:
    source = "def f():\n    {}\n    return 3\n"
    for entered in (None, (), ("f#1",)):
        plain = of(source.format("x: int = 1"), entered=entered)
        assert of(source.format(yields), entered=entered) != plain is not None


@pytest.mark.parametrize(
    "text",
    [
        "def f(:\n", "return 1\n", "x = '\\d'\n", "def f():\n    nonlocal x\n", "x is 1\n",
        "def f():\n    'a \\d doc'\n", "x = '\0'\n", "(" * 500 + ")" * 500,
    ],
)  # fmt: skip
def test_what_does_not_compile_in_silence_has_no_form(text: str) -> None:
    assert of(text) is None
    assert of(text, entered=()) is None


def test_a_function_that_python_knows_by_another_name_has_no_form() -> None:
    """An annotation in it may be what makes a cell of the function around."""
    assert of("def f():\n    T = 1\n    global g\n    def g():\n        x: T = 1\n") is None


def test_functions_are_known_by_name_and_first_line() -> None:
    source = b"""\
def f():
    def g():
        return [lambda: 1 for _ in range(2)]
    class C:
        @property
        def m(self): return (x for x in ())
    return g, C


def f():
    return lambda: (lambda: 2)
"""

    def found(*events: tuple[str, int]) -> tuple[str, ...] | None:
        return canonical.keys(source, events)

    assert found(("<module>", 1)) == ()
    assert found(("f", 1)) == ("f#1",)
    assert found(("f", 10)) == ("f#2",)
    assert found(("f.<locals>.g", 2)) == ("f#1", "f#1.<locals>.g#1")
    inner = "f.<locals>.g.<locals>.<listcomp>.<locals>.<lambda>"
    assert found((inner, 3)) == ("f#1", "f#1.<locals>.g#1")
    assert found(("f.<locals>.C", 4)) == ("f#1",)
    assert found(("f.<locals>.C.m", 5)) == ("f#1", "f#1.<locals>.C.m#1")
    assert found(("f.<locals>.<lambda>.<locals>.<lambda>", 11)) == ("f#2",)
    assert found(("f", 2)) is None
    assert found(("other", 1)) is None
    hidden = b"class f: pass\ndef o():\n    global f\n    def f(): return 1\n    f()\n"
    assert canonical.keys(hidden, [("o", 2), ("f", 4)]) is None
    assert canonical.keys(hidden, [("o", 2), ("f", 1)]) == ("o#1",)
    assert canonical.keys(b"def f(:", [("f", 1)]) is None


def test_a_tree_tells_of_this_python_and_the_next_two() -> None:
    import sys

    major, minor = sys.version_info[:2]
    assert [canonical.understands((major, minor + n)) for n in (-1, 0, 2, 3)] == [
        False, True, True, False,
    ]  # fmt: skip
