"""What every verb prints for fixed repositories: stdout, stderr and exit status, in transcripts.

A transcript (`VERB.txt`, or `VERB-SUBJECT.txt`) says what the core answers by itself; those in
`tests/lab/golden` and `tests/page/golden`, what it answers with the wings. It is a list of
commands, each typed in one of the repositories of `repositories.py`, and of their answers:

    exact$ celedger log -n 1
      2b3c4d5e  2026-02-25  a line of stdout
    ! a line of stderr
    = the exit status

Commands of one transcript see what those before them wrote. To add one, write its line with the
prompt and type `pytest tests/golden --update-golden`, which writes all answers anew; then read
the difference. Numbers in JSON may differ in their last digits from machine to machine.
"""

from __future__ import annotations

import difflib
import json
import math
import platform
import re
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from golden.repositories import HERE, NOW, REPOSITORIES, copy
from scripted import draw_nothing, typed

import celedger
from celedger.base import plugins
from celedger.system import environment, process
from celedger.trial import workplace
from celedger.trial.station import Setup

FOLDER = Path(__file__).parent
TRANSCRIPTS = sorted([*FOLDER.glob("*.txt"), *FOLDER.parent.glob("*/golden/*.txt")])
WIDTH, JSON_WIDTH = 100, 140

_PROMPT = re.compile(
    r"(?P<repository>[a-z]+)\$ (?P<settings>(?:[A-Z_]+=\S+ )*)celedger ?(?P<words>.*)"
)
_NUMBER = re.compile(r'(?<![\w."])-?\d+(?:\.\d+)?(?:e[-+]?\d+)?(?![\w."])')
_NEW_ULID = re.compile(r"\b01(?!K0000)[0-9A-HJKMNP-TV-Z]{24}\b")
_HASH = re.compile(r"(?<=`celedger allow )[0-9a-f]{12}\b")
_TOLERANCE = 1e-6  # of a number in JSON, relative: sums and special functions differ by machine


@dataclass(frozen=True)
class Place:
    """Where the commands of one transcript run."""

    folder: Path
    templates: Callable[[str], Path]
    hashes: list[str] = field(default_factory=list)  # under which `allow` showed what is new

    def answer(self, line: str) -> list[str]:
        """Run the command on a prompt's line, and return the lines of its answer."""
        prompt = _PROMPT.fullmatch(line)
        assert prompt is not None, f"no command: {line}"
        repository = self.folder / prompt["repository"]
        if not repository.exists():
            copy(self.templates(prompt["repository"]), repository)
        words = [self.hashes[-1] if w == "HASH" else w for w in shlex.split(prompt["words"])]
        settings = dict(setting.split("=", 1) for setting in prompt["settings"].split())
        done = typed(words, repository, settings)
        stdout, stderr = self._portable(done.out), self._portable(done.err)
        if "--json" in words and done.status != 129 and stdout:
            stdout = _tidy(json.loads(stdout)) + "\n"
        return [
            *(f"  {text}" if text else "" for text in stdout.splitlines()),
            *(f"! {text}" for text in stderr.splitlines()),
            f"= {done.status}",
        ]

    def _portable(self, text: str) -> str:
        """Return the text without what differs from machine to machine and from run to run."""
        for found, name in (
            (str(self.folder), "/work"),
            (sys.executable, "/usr/bin/python"),
            (platform.platform(), "PLATFORM"),
            (f"Python {platform.python_version()}", "Python VERSION"),
            (f"celedger {celedger.__version__}", "celedger VERSION"),
        ):
            text = text.replace(found, name)
        text = re.sub(r"(?m)^(sandbox +).*$", r"\1SANDBOX", text)
        self.hashes.extend(_HASH.findall(text))
        return _NEW_ULID.sub("NEW_ULID", _HASH.sub("HASH", text))


def _tidy(value: object, indent: str = "") -> str:
    """Return JSON with what fits on a line on one, and floats without their last digits."""
    if isinstance(value, float):
        return repr(float(f"{value:.12g}"))
    if not isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    inner = indent + " "
    if isinstance(value, dict):
        items = [f"{json.dumps(key)}: {_tidy(item, inner)}" for key, item in value.items()]
        left, right = "{}"
    else:
        items = [_tidy(item, inner) for item in value]
        left, right = "[]"
    lines = [""]
    for item in items:
        fits = len(inner + lines[-1] + item) < JSON_WIDTH and "\n" not in lines[-1] + item
        if lines[-1] and not fits:
            lines.append("")
        lines[-1] += f"{item}, "
    text = f"\n{inner}".join(line.rstrip() for line in lines).removesuffix(",")
    if len(lines) == 1 and "\n" not in text:
        return f"{left}{text}{right}"
    return f"{left}\n{inner}{text}\n{indent}{right}"


def _equal(stored: str, answer: str) -> bool:
    """Return True where two lines differ in nothing but the last digits of numbers of JSON."""
    if stored == answer:
        return True
    if _NUMBER.sub("", stored) != _NUMBER.sub("", answer):
        return False
    pairs = zip(_NUMBER.findall(stored), _NUMBER.findall(answer), strict=True)
    return all(math.isclose(float(a), float(b), rel_tol=_TOLERANCE) for a, b in pairs)


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Make each repository when it is first asked for."""
    made: dict[str, Path] = {}

    def template(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp("repositories") / name
            REPOSITORIES[name](made[name])
        return made[name]

    return template


@pytest.fixture
def place(
    tmp_path: Path,
    templates: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Place:
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(time, "time", lambda: NOW)
    monkeypatch.setattr(environment, "describe", lambda *_, **__: HERE)
    monkeypatch.setattr(process, "run", _refuse)
    monkeypatch.setattr(process, "spawn", partial(_spawn, process.spawn))
    monkeypatch.setattr(workplace, "Setup", partial(Setup, now=lambda: NOW))
    draw_nothing(monkeypatch)
    if request.node.callspec.params["path"].parent == FOLDER:
        monkeypatch.setattr(plugins, "installed", lambda _: {})
    folder = tmp_path.resolve() / "repositories"
    folder.mkdir()
    return Place(folder, templates)


def _name(path: Path) -> str:
    wing = "" if path.parent == FOLDER else f"{path.parent.parent.name}-"
    return wing + path.stem


def _spawn(spawn: Callable[..., object], argv: Sequence[str], **options: object) -> object:
    """Start no worker: it would race the transcript's next command."""
    return None if "worker" in argv else spawn(argv, **options)


def _refuse(argv: Sequence[str], **_: object) -> None:
    pytest.fail(f"a transcript must not train: {argv}")


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=_name)
def test_transcript(path: Path, place: Place, request: pytest.FixtureRequest) -> None:
    stored = path.read_text(encoding="utf-8").splitlines()
    lines: list[str] = []
    for line in stored:
        if line.startswith("#"):
            lines.append(line)
        elif _PROMPT.fullmatch(line):
            lines += ["", line, *place.answer(line)]
    lines = lines[1:] if lines[0] == "" else lines
    if len(lines) == len(stored) and all(map(_equal, stored, lines)):
        return
    if request.config.getoption("--update-golden"):
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    else:
        difference = difflib.unified_diff(stored, lines, path.name, "now", lineterm="", n=2)
        pytest.fail("\n".join(difference), pytrace=False)


def test_last_digits_of_json_may_differ_and_nothing_else() -> None:
    assert _equal('{"sd": 0.123456789, "n": 3}', '{"sd": 0.123456788, "n": 3}')
    assert not _equal('{"sd": 0.123456789, "n": 3}', '{"sd": 0.123466789, "n": 3}')
    assert not _equal('{"sd": 0.123456789, "n": 3}', '{"sd": 0.123456789, "n": 4}')
    assert not _equal('{"sha": "12e4"}', '{"sha": "120e3"}')
    assert not _equal("val_loss 0.4132", "val_loss 0.4133")
