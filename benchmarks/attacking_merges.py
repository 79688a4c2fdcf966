"""Merges that attack an installed hook, in a real repository with the real program: each tries to
have something new run unattended, to have celedger write outside of the repository, or to have it
read a secret.

    python benchmarks/attacking_merges.py [--only NAME] [--keep]

Counted for each: what ran (a canary), what was written outside or among git's own files, a secret
that was read, a hook that failed or took longer than 2 s, a command that hung or ended in an
internal error, and an answer without help: `hook status` and `status` name a merge that waits,
`allow` shows it, `queue` says why one is refused. Exits 1 for any.
"""

# ruff: noqa: E501 (one attack a line)

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

SECRET = "the-user's-own-secret"
SLOW, HUNG = 2.0, 60.0  # seconds: of a hook, of a worker or a command
FIT = "import model\nfrom celedger.child import log\nlog(epoch=0, val_loss=model.LEVEL)\n"
SUITE = f"""\
[suite]
name = "tiny"
python = "{sys.executable}"
inputs = ["pkg/**"]
build = ["sh build.sh"]
[metrics.val_loss]
direction = "lower"
[[task]]
name = "fit"
command = "{{python}} {{suite}}/fit.py --lr {{lr}}"
params = {{ lr = 0.1 }}
"""
TOML, SCRIPT = "suites/tiny/suite.toml", "suites/tiny/fit.py"
MODULES = ("json", "sqlite3", "typer", "sitecustomize", "usercustomize", "tomllib")
WAITS, REFUSED, RUNS = "waiting", "failed", "done"  # states of a job
ASKED = ("hook status", "status", "queue", "log", "allow --dry-run", "queue --json")


class World:
    """Somebody's folder: a clone with the hook, what it pulls from, a home and a secret. What makes
    an attack changes the work tree `up`, and returns the world."""

    def __init__(self, folder: Path) -> None:
        self.top, self.kept = folder / "world", folder / "kept"
        self.up, self.own, self.outside = (self.top / n for n in ("up", "own", "outside"))
        self.home = self.top / "home"
        self.canary, self.ended, self.trace = (folder / n for n in ("canary", "ended", "trace"))
        self.payload = f"touch {self.canary}"
        self.evil = f'#!/bin/sh\n{self.payload}\nexec {sys.executable} "$@"\n'
        # The code under test may run in a training, and nowhere else.
        self.module = f"import os\n'/checkouts/' in os.getcwd() or os.system({self.payload!r})\n"
        self.env = {"HOME": str(self.home), "PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
        self._make()
        shutil.copytree(self.top, self.kept, symlinks=True)

    def _make(self) -> None:
        for path in (self.up, self.outside, self.home):
            path.mkdir(parents=True)
        (self.outside / "secret").write_text(SECRET)
        (self.home / ".gitconfig").write_text(
            "[user]\nname = a\nemail = a@b\n[pull]\nrebase = false\n"
        )
        self.git(self.up, "init", "-qb", "main")
        self.files({
            "model.py": "LEVEL = 1.0\n", "build.sh": "true\n", "pkg/a.c": "", TOML: SUITE, SCRIPT: FIT,
            "pyproject.toml": '[tool.celedger]\nhook_suite = "tiny"\n',
        })  # fmt: skip
        self.commit("first")
        self.git(self.top, "clone", "-q", str(self.up), "own")
        for words in ("hook install", "run HEAD"):
            code, said = self.ask(words)
            assert code == 0, said
        hook = self.own / ".git/hooks/post-merge"
        text = hook.read_text()
        line = next(line for line in text.splitlines() if line.startswith("python="))
        program = self.home / "python"  # says when the worker has ended
        program.write_text(f'#!/bin/sh\n{line}\n"$python" "$@"\ntouch {self.ended}\n')
        program.chmod(0o755)
        hook.write_text(text.replace(line, f"python={program}"))

    def reset(self) -> None:
        shutil.rmtree(self.top)
        shutil.copytree(self.kept, self.top, symlinks=True)
        for path in (self.canary, self.ended, self.trace):
            path.unlink(missing_ok=True)

    def git(self, where: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        return self._run(["git", *words], where, env)

    def ask(self, words: str) -> tuple[int, str]:
        done = self._run([sys.executable, "-P", "-m", "celedger", *words.split()], self.own, {})
        return done.returncode, done.stdout + done.stderr

    def _run(
        self, words: list[str], cwd: Path, env: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words, cwd=cwd, env={**self.env, **env}, capture_output=True, text=True, errors="replace",
            timeout=HUNG, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def files(self, files: Mapping[str, str | bytes]) -> World:
        for name, text in files.items():
            path = self.up / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode() if isinstance(text, str) else text)
            if text == self.evil:
                path.chmod(0o755)
        return self

    def without(self, name: str) -> World:
        self.git(self.up, "rm", "-rqf", "--ignore-unmatch", name)
        return self

    def link(self, name: str, target: Path | str) -> World:
        path = self.without(name).up / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)
        return self

    def gitlink(self, name: str) -> World:
        sha = self.without(name).git(self.up, "rev-parse", "HEAD").stdout.strip()
        self.git(self.up, "update-index", "--add", "--cacheinfo", f"160000,{sha},{name}")
        (self.up / name).mkdir(parents=True, exist_ok=True)
        return self

    def tag(self, *names: str) -> World:
        for name in names:
            self.git(self.up, "update-ref", f"refs/tags/{name}", "HEAD")
        return self

    def suite(self, old: str = "", new: str = "", more: str = "") -> World:
        text = (self.up / TOML).read_text()
        assert old in text
        return self.files({TOML: text.replace(old, new, 1) + more})

    def head(self, line: str) -> World:
        return self.suite('name = "tiny"\n', f'name = "tiny"\n{line}\n')

    def other(self, name: str, folder: str) -> World:
        text = SUITE.replace("sh build.sh", self.payload).replace("tiny", name)
        return self.files({f"{folder}/suite.toml": text, f"{folder}/fit.py": FIT})

    def settings(self, text: str) -> World:
        return self.files({"celedger.toml": f'hook_suite = "tiny"\n{text}\n'})

    def commit(self, subject: str) -> None:
        self.git(self.up, "add", "-Af", ".")
        self.git(self.up, "commit", "-qm", subject, "--allow-empty")

    def pull(self) -> float | None:
        """Return how many seconds git waited for the hook; None where that or the pull failed."""
        self.git(self.own, "fetch", "-q", "--tags")
        done = self.git(self.own, "pull", "-q", "--no-edit", GIT_TRACE2_EVENT=str(self.trace))
        events = [json.loads(line) for line in self.trace.read_text().splitlines()]
        hooks = {(e["sid"], e["child_id"]) for e in events if e.get("hook_name") == "post-merge"}
        times = [e["t_rel"] for e in events if e["event"] == "child_exit"
                 and (e["sid"], e["child_id"]) in hooks and e["code"] == 0]  # fmt: skip
        return times[0] if times and done.returncode == 0 else None

    def state(self) -> dict[str, bytes]:
        """Return all that celedger has no business to change."""
        git = self.own / ".git"
        paths = [*self.outside.rglob("*"), *self.home.rglob("*"), git / "config"]
        paths += [*(git / "hooks").iterdir(), *(git / "info").iterdir()]
        status = self.git(self.own, "status", "--porcelain").stdout.encode()
        contents = {str(p): p.read_bytes() for p in paths if p.is_file()}
        return {"git status": status, "paths": str(sorted(paths)).encode(), **contents}

    def secrets(self) -> list[str]:
        folders = [self.own / ".git" / "celedger", self.own / ".celedger"]
        files = [p for f in folders if not f.is_symlink() for p in f.rglob("*")]
        files = [p for p in files if p.is_file() and not p.is_symlink()]
        return [str(p) for p in files if SECRET.encode() in p.read_bytes()]


Attack = tuple[str, str, Callable[[World], object], str]  # name, what becomes of it, what is shown


def try_one(world: World, attack: Attack, *, ahead: bool) -> tuple[str, list[str], float]:
    """Return what became of the merge (where the victim is `ahead`; else it is a fast-forward), the
    harm that it did, and the seconds of its hook."""
    name, expected, act, shows = attack
    world.reset()
    if ahead:
        world.git(world.own, "commit", "-qm", "mine", "--allow-empty")
    act(world)
    world.commit(name)
    before = world.state()
    took = world.pull()
    harms = [f"the hook failed, or took long: {took}"] * (took is None or took > SLOW)
    begun = time.monotonic()
    while not world.ended.exists():
        if time.monotonic() - begun > HUNG:
            return "hung", [*harms, "no worker ended"], HUNG
        time.sleep(0.02)
    said = {}
    for words in ASKED:
        try:
            code, said[words] = world.ask(words)
        except subprocess.TimeoutExpired:
            code, said[words] = -9, "hung"
        if code not in (0, 1, 125, 128, 129) or any(
            sign in said[words] for sign in ("Traceback", "internal error")
        ):
            harms.append(f"{words} ended with {code}: {said[words][-200:]}")
    end, answer = REFUSED, said["queue"]
    if said["queue --json"].startswith("{"):
        queue = json.loads(said["queue --json"])
        end = WAITS if queue["waits"] else queue["jobs"][-1]["state"]
    if end == WAITS:
        harms += [f"{words} does not name `allow`" for words in ("hook status", "status")
                  if "celedger allow" not in said[words]]  # fmt: skip
        answer = said["allow --dry-run"]
    if end != expected or shows not in answer:
        harms.append(f"{end} in place of {expected}, or without {shows!r}: {answer[-300:]}")
    harms += ["something new ran"] * world.canary.exists()
    after = world.state()
    harms += [f"changed: {key}" for key in {*before, *after} if before.get(key) != after.get(key)]
    harms += [f"the secret is in {path}" for path in world.secrets()]
    return end, harms, took or 0.0


ATTACKS: list[Attack] = [
    # what a suite asks for
    ("command", WAITS, lambda w: w.suite("{python} {suite}", f"sh -c '{w.payload}' {{suite}}"), "canary"),
    ("module", WAITS, lambda w: w.suite("{python} {suite}/fit.py", "{python} -m evil"), "-m evil"),
    ("build", WAITS, lambda w: w.suite("sh build.sh", w.payload), "canary"),
    ("interpreter of the tree", WAITS, lambda w: w.suite(sys.executable, "tools/python").files({"tools/python": w.evil}), "canary"),
    ("interpreter elsewhere", WAITS, lambda w: w.suite(sys.executable, "/bin/sh"), "/bin/sh"),
    ("preload", WAITS, lambda w: w.head('preload = ["antigravity"]'), "antigravity"),
    ("requirements", WAITS, lambda w: w.head('venv = ["r.txt"]').files({"r.txt": "evil\n"}), "evil"),
    ("parameter", WAITS, lambda w: w.suite("lr = 0.1", 'lr = "-c"'), "-c"),
    ("grid", WAITS, lambda w: w.suite("{lr}", "{lr} {x}", "grid = { x = [1, 2, 3] }\n"), "{x}"),
    ("time-out", WAITS, lambda w: w.head('timeout = "300d"'), "timeout"),
    ("seeds", WAITS, lambda w: w.head("seeds = 10000"), "seeds"),
    ("variables", WAITS, lambda w: w.head('pass_env = ["GITHUB_TOKEN"]'), "GITHUB_TOKEN"),
    ("inputs", WAITS, lambda w: w.suite("pkg/**", "**"), "inputs"),
    ("import roots", WAITS, lambda w: w.head('pythonpath = ["pkg"]'), "pythonpath"),
    ("recorder", WAITS, lambda w: w.head("trace = false"), "trace"),
    ("floor", WAITS, lambda w: w.suite('"lower"', '"lower"\nfloor = "900%"'), "900%"),
    ("direction", WAITS, lambda w: w.suite('"lower"', '"info"'), "info"),
    ("task", WAITS, lambda w: w.suite(more=f'[[task]]\nname = "x"\ncommand = "{w.payload}"\n'), "canary"),
    # a suite's files
    ("script", WAITS, lambda w: w.files({SCRIPT: w.module + FIT}), "canary"),
    ("NUL in a script", WAITS, lambda w: w.files({SCRIPT: w.module + FIT + "\0"}), "(binary)"),
    ("long line", WAITS, lambda w: w.files({SCRIPT: FIT + "#" + " " * 9999 + w.payload}), "canary"),
    ("line ends", WAITS, lambda w: w.files({SCRIPT: "# \r" + w.module + FIT}), "canary"),
    ("direction marks", WAITS, lambda w: w.files({SCRIPT: f"# \u202e{w.payload}\n{FIT}"}), "\\u202e"),
    ("executable script", WAITS, lambda w: (w.up / SCRIPT).chmod(0o755), "fit.py"),
    ("module beside", WAITS, lambda w: w.files({"suites/tiny/model.py": w.module + "LEVEL = 1"}), "model.py"),
    ("start-up beside", WAITS, lambda w: w.files({"suites/tiny/sitecustomize.py": w.module}), "sitecustomize"),
    ("byte-code beside", RUNS, lambda w: w.files({"suites/tiny/model.pyc": w.module}), ""),
    ("dotfile beside", RUNS, lambda w: w.files({"suites/tiny/.env": w.payload}), ""),
    ("script is gone", REFUSED, lambda w: w.without(SCRIPT), "not there"),
    ("folder for the script", WAITS, lambda w: w.without(SCRIPT).files({f"{SCRIPT}/__main__.py": w.module + FIT}), "__main__"),
    ("suite renamed", WAITS, lambda w: w.other("tiny", "suites/zzz").without("suites/tiny"), "canary"),
    ("another suite", RUNS, lambda w: w.other("new", "suites/new"), ""),
    ("suite of the same name", RUNS, lambda w: w.other("tiny", "suites/aaa"), ""),
    ("suite in capitals", RUNS, lambda w: w.other("tiny", "suites/TINY"), ""),
    ("suite linked", WAITS, lambda w: w.other("tiny", "pkg/tiny").link("suites/tiny", "../pkg/tiny"), "canary"),
    ("suite.toml linked", WAITS, lambda w: w.other("tiny", "pkg/t").link(TOML, "../../pkg/t/suite.toml"), "canary"),
    ("script linked", WAITS, lambda w: w.files({"pkg/x": w.module + FIT}).link(SCRIPT, "../../pkg/x"), "canary"),
    ("script linked outside", REFUSED, lambda w: w.link(SCRIPT, w.outside / "secret"), "leads out"),
    ("suite is a submodule", REFUSED, lambda w: w.gitlink("suites/tiny"), "no suite"),
    ("not TOML", REFUSED, lambda w: w.files({TOML: b"\xff\0"}), "UTF-8"),
    ("nested TOML", REFUSED, lambda w: w.files({TOML: "a = " + "[" * 99_999}), "not TOML"),
    ("8 MB of TOML", RUNS, lambda w: w.suite(more="# x\n" * 2_000_000), ""),
    # settings
    ("hook_suite", WAITS, lambda w: w.other("new", "suites/new").files({"celedger.toml": 'hook_suite = "new"'}), "new"),
    ("suites", WAITS, lambda w: w.other("tiny", "pkg/tiny").settings('suites = "pkg"'), "suites"),
    ("ledger", WAITS, lambda w: w.settings('ledger = "model.db"'), "model.db"),
    ("ledger outside", REFUSED, lambda w: w.settings(f'ledger = "{w.outside}/x.db"'), "leads out"),
    ("ledger in .git", REFUSED, lambda w: w.settings('ledger = ".git/hooks/post-commit"'), "leads out"),
    ("bisect", WAITS, lambda w: w.settings("bisect_on_regression = true"), "bisect_on_regression"),
    ("cache limit", WAITS, lambda w: w.settings("cache_limit = 1"), "cache_limit"),
    ("notify", REFUSED, lambda w: w.settings('notify = ["json://localhost"]'), "notify"),
    ("report", REFUSED, lambda w: w.settings(f'report = "{w.outside}/page.html"'), "report"),
    ("engine", REFUSED, lambda w: w.settings('engine = "slurm"'), "engine"),
    ("settings linked", REFUSED, lambda w: w.link("celedger.toml", w.outside / "secret"), "leads out"),
    ("pyproject linked", REFUSED, lambda w: w.link("pyproject.toml", w.outside / "secret"), "leads out"),
    # celedger's own places
    (".celedger linked", REFUSED, lambda w: w.link(".celedger", w.outside), "symbolic link"),
    ("logs linked", REFUSED, lambda w: w.link(".celedger/logs", w.outside), "tracks"),
    ("stamp linked", REFUSED, lambda w: w.link(".celedger/ledger.db.stamp", "../../outside/secret"), "tracks"),
    ("ledger tracked", REFUSED, lambda w: w.files({"ledger.db": b"SQLite format 3\0"}), "tracks"),
    ("ledger linked", REFUSED, lambda w: w.link("ledger.db", w.outside / "secret"), "link"),
    ("log of the ledger", REFUSED, lambda w: w.files({"ledger.db-wal": b"\x37\x7f\x06\x82" + bytes(99)}), "tracks"),
    # what git and other programs obey elsewhere
    ("attributes", RUNS, lambda w: w.files({".gitattributes": "* filter=evil diff=evil merge=evil ident\n"}), ""),
    ("LFS", RUNS, lambda w: w.files({
        ".gitattributes": "*.bin filter=lfs\n", "a.bin": "x",
        ".lfsconfig": f'[lfs "customtransfer.x"]\npath = {w.payload}\n'}), ""),
    ("submodule", RUNS, lambda w: w.gitlink("x").files({
        ".gitmodules": f'[submodule "x"]\npath = x\nurl = ./y\nupdate = !{w.payload}\n'}), ""),
    ("hooks", RUNS, lambda w: w.files(dict.fromkeys(("hooks/post-checkout", ".githooks/post-checkout"), w.evil)), ""),
    ("configuration", RUNS, lambda w: w.files(dict.fromkeys(
        (".gitconfig", "config"), f"[core]\nhooksPath = hooks\nfsmonitor = {w.payload}\n")), ""),
    ("names of refs", RUNS, lambda w: w.tag("HEAD", "main", "-x", "--output=x"), ""),
    ("names of files", RUNS, lambda w: w.files({"a\nb": "", f"--exec={w.payload}": "", "\x1b[2J": ""}), ""),
    ("mailmap", RUNS, lambda w: w.files({".mailmap": "\x1b[2J\u202e <x@y> <a@b>\n"}), ""),
    ("modules", RUNS, lambda w: w.files({f"{name}.py": w.module for name in MODULES}), ""),
    ("celedger's namesake", RUNS, lambda w: w.files(dict.fromkeys(
        ("celedger/__init__.py", "celedger/__main__.py"), w.module)), ""),
    ("entry point", RUNS, lambda w: w.files({
        "evil-1.dist-info/entry_points.txt": "[celedger.verbs]\nstatus = evil\n[celedger.engines]\nlocal = evil\n",
        "evil.py": w.module, "evil.pth": "import evil\n"}), ""),
    ("environment", RUNS, lambda w: w.files({
        ".venv/bin/python": w.evil, ".venv/pyvenv.cfg": "home = .\n", ".python-version": "evil"}), ""),
    ("programs", RUNS, lambda w: w.files(dict.fromkeys(("git", "sh", "python", "celedger", "uv"), w.evil)), ""),
    ("tools", RUNS, lambda w: w.files({
        **dict.fromkeys(("conftest.py", "setup.py", "noxfile.py"), w.module), "Makefile": f"all:\n\t{w.payload}\n",
        ".envrc": w.payload, "uv.toml": 'index-url = "file:///x"\n', "pip.conf": "[global]\ntarget = /\n"}), ""),
    ("30 MB", RUNS, lambda w: w.files({"data.bin": os.urandom(30_000_000)}), ""),
    ("100 folders deep", RUNS, lambda w: w.files({"d/" * 100 + "x": ""}), ""),
]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="a part of the attacks' names")
    parser.add_argument("--keep", action="store_true", help="leave the folder")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="celedger-merges-"))
    world, ends, slowest, bad = World(folder), Counter[str](), 0.0, 0
    for number, attack in enumerate(ATTACKS):
        if options.only in attack[0]:
            end, harms, took = try_one(world, attack, ahead=number % 2 == 1)
            ends[end] += 1
            bad += bool(harms)
            slowest = max(slowest, took)
            print(f"{attack[0]:24} {end}", *harms, sep="\n    ", flush=True)
    print(
        f"{sum(ends.values())} merges: {dict(ends)}; {bad} did harm; a hook took {slowest:.2f} s at most"
    )
    if not options.keep:
        shutil.rmtree(folder)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
