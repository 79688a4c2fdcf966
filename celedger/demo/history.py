"""A history of the demo's library: about sixty commits by several people, two merges, two
commits that do not import and four planted regressions, all chosen, ordered and worded by a
seed. Pure but for `materialise`, which has git write it down. It must not know how the history
is measured or bisected.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from celedger.demo import vocabulary
from celedger.demo.library import snapshot
from celedger.demo.steps import KINDS, Kind, Step, branches, steps
from celedger.demo.vocabulary import Person
from celedger.errors import RepositoryError
from celedger.repo import Repository
from celedger.repo.fast_import import NewCommit, create

_ORDINARY = 48  # steps that are neither planted nor broken, so about sixty commits in all
_BROKEN = 2
_BRANCHES = 2
_ON_A_BRANCH = 0.3  # how often one of the planted regressions comes in by a side branch
_SPREAD = 0.3  # how far a step strays from where in the history it belongs
_HOUR = 3600
_ALL = 10_000


@dataclass(frozen=True, slots=True)
class Planted:
    """The truth about one regression. `commit` is a key of the history's commits; `metric` is
    empty for a crash."""

    kind: Kind
    commit: str
    task: str
    metric: str
    description: str
    subject: str


@dataclass(frozen=True, slots=True)
class DemoHistory:
    """Parents come before their children; the last commit is the head of main. `broken` are
    the commits that do not import; the one after each repairs it."""

    commits: tuple[NewCommit, ...]
    planted: tuple[Planted, ...]
    broken: tuple[str, ...]
    suite: str
    suite_files: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class _Node:
    """A commit before it has words and files: which flags it adds to its parents'."""

    key: str
    parents: tuple[str, ...]
    adds: frozenset[str]
    merges: str = ""  # the side branch


def build(seed: int) -> DemoHistory:
    """The history of a seed: equal seeds give equal histories."""
    random = Random(f"celedger demo {seed}")
    words = vocabulary.words(random)
    chosen, sides = _choose(random)
    nodes = list(_graph(random, chosen, sides))
    suite_files = snapshot("suite", frozenset(), words)
    commits = tuple(_commits(random, nodes, words, suite_files))
    return DemoHistory(
        commits=commits,
        planted=tuple(_planted(nodes, {commit.key: commit for commit in commits})),
        broken=tuple(n.key for n in nodes if n.key in steps() and steps()[n.key].repairs),
        suite=words["suite"],
        suite_files=suite_files,
    )


def materialise(path: Path, seed: int) -> tuple[tuple[Planted, str], ...]:
    """Make the repository of a seed at `path`, or find it there again: what was planted, each
    with its commit's hash. Raises RepositoryError where another repository is."""
    history = build(seed)
    if not (path / ".git").exists():
        shas = create(path, history.commits)
        return tuple((planted, shas[planted.commit]) for planted in history.planted)
    repository = Repository.open(path)
    # no two commits of a demo are of the same time
    found = {commit.commit_time: commit.sha for commit in repository.log("HEAD", _ALL)}
    times = {commit.key: commit.time for commit in history.commits}
    if not found.keys() >= set(times.values()):
        raise RepositoryError(
            f"{path} is not the demo of seed {seed}", "name another folder, or remove it"
        )
    return tuple((planted, found[times[planted.commit]]) for planted in history.planted)


# --- what happens


def _choose(random: Random) -> tuple[list[Step], dict[str, list[Step]]]:
    """The steps on main, and those on each side branch."""
    catalogue = steps()
    planted = [
        random.choice([s for s in catalogue.values() if s.plant and s.plant.kind == kind])
        for kind in KINDS
    ]
    if any(a.name in b.excludes for a in planted for b in planted):
        return _choose(random)
    broken = random.sample([s for s in catalogue.values() if s.repairs], _BROKEN)
    names = random.sample(sorted(branches()), _BRANCHES)
    sides = {name: [catalogue[step] for step in branches()[name]] for name in names}

    taken = {s.name for s in (*planted, *broken)} | {
        s.name for side in sides.values() for s in side
    }
    ordinary: list[Step] = []
    pool = [s for s in catalogue.values() if not s.plant and not s.repairs and s.name != "suite"]
    random.shuffle(pool)
    pool = [s for s in pool if s.name not in taken and not s.excludes & taken]
    while len(ordinary) + sum(map(len, sides.values())) < _ORDINARY:
        step = next(s for s in pool if s.name not in taken and s.needs <= taken)
        ordinary.append(step)
        taken.add(step.name)

    if random.random() < _ON_A_BRANCH:
        moved = random.choice(planted)
        planted.remove(moved)
        side = random.choice(list(sides.values()))
        side.insert(random.randint(0, len(side)), moved)
    return [*ordinary, *broken, *planted], sides


def _order(
    random: Random, chosen: Sequence[Step], sides: Mapping[str, Sequence[Step]]
) -> list[str]:
    """Names of steps and of side branches (where they are merged), as they come to main."""
    needs = {step.name: set(step.needs) for step in chosen}
    place = {step.name: random.gauss(step.when, _SPREAD) for step in chosen}
    place |= {s.name: random.random() for s in chosen if s.plant or s.repairs}
    brought: dict[str, str] = {}
    for name, side in sides.items():
        needs[name] = set()  # a branch needs nothing but what is on it
        place[name] = random.uniform(0.2, 0.9)
        brought |= {step.name: name for step in side}
    for wanted in needs.values():
        wanted -= (outside := wanted & brought.keys())
        wanted |= {brought[name] for name in outside}
    order: list[str] = []
    while len(order) < len(needs):
        ready = [name for name in needs if name not in order and needs[name] <= set(order)]
        order.append(min(ready, key=place.__getitem__))
    # a regression at the very ends would leave the bisection nothing to do
    early = [name for name in order[:2] if steps().get(name) and steps()[name].plant]
    for name in early:
        order.remove(name)
        order.insert(random.randint(3, len(order) - 1), name)
    return order


def _graph(
    random: Random, chosen: Sequence[Step], sides: Mapping[str, Sequence[Step]]
) -> Iterator[_Node]:
    """The commits in an order in which parents come first."""
    order = _order(random, chosen, sides)
    catalogue = steps()
    forks: dict[int, list[str]] = {}
    for name in sides:
        merged = order.index(name)
        forks.setdefault(max(0, merged - random.randint(2, 5)), []).append(name)

    tip = "root"
    yield _Node("root", (), frozenset())
    tips: dict[str, str] = {}
    waiting: dict[str, list[Step]] = {}
    for position, name in enumerate(order):
        for branch in forks.get(position, ()):
            tips[branch], waiting[branch] = tip, list(sides[branch])
        for branch, left in waiting.items():  # people work on both at once
            while left and (branch == name or random.random() < 0.4):
                step = left.pop(0)
                yield _Node(step.name, (tips[branch],), frozenset({step.name}))
                tips[branch] = step.name
        if name in sides:
            key = f"merge {name}"
            yield _Node(key, (tip, tips[name]), frozenset(), merges=name)
            tip = key
            continue
        yield _Node(name, (tip,), frozenset({name}))
        tip = name
        if catalogue[name].repairs:
            repaired = catalogue[name].repaired
            yield _Node(repaired, (tip,), frozenset({repaired}))
            tip = repaired
    yield _Node("suite", (tip,), frozenset({"suite"}))


# --- how it is told


def _commits(
    random: Random, nodes: Sequence[_Node], words: Mapping[str, str], suite: Mapping[str, bytes]
) -> Iterator[NewCommit]:
    people = vocabulary.people(random)
    weights = [1.0 / (rank + 1) for rank in range(len(people))]
    style = vocabulary.subject_style(random)
    time = 1_672_531_200 + random.randrange(2 * 365 * 24) * _HOUR  # 2023 or 2024
    flags: dict[str, frozenset[str]] = {}
    trees: dict[str, dict[str, bytes]] = {}
    owners: dict[str, Person] = {}
    for node in nodes:
        flags[node.key] = node.adds.union(*(flags[parent] for parent in node.parents))
        tree = snapshot("library", flags[node.key], words)
        if "suite" in flags[node.key]:
            tree |= {f"suites/{words['suite']}/{path}": text for path, text in suite.items()}
        trees[node.key] = tree
        before = trees[node.parents[0]] if node.parents else {}
        changes: dict[str, bytes | None] = {p: t for p, t in tree.items() if before.get(p) != t}
        changes |= dict.fromkeys(before.keys() - tree.keys())
        person = random.choices(people, weights)[0]
        if node.key.endswith("_fixed"):  # who broke it repairs it, soon
            person = owners[node.parents[0]]
            time += random.randint(5, 90) * 60
        else:
            time = _next_time(random, time)
        owners[node.key] = person
        yield NewCommit(
            key=node.key, message=_message(random, node, style, words), files=changes,
            parents=node.parents, author=person.name, email=person.email, time=time,
        )  # fmt: skip


def _next_time(random: Random, time: int) -> int:
    """Some hours later, and not at night (UTC)."""
    time += int(random.expovariate(1.0 / (20 * _HOUR))) + random.randint(300, 2 * _HOUR)
    hour = time // _HOUR % 24
    return time + (8 - hour) % 24 * _HOUR if hour < 8 or hour > 20 else time


def _message(random: Random, node: _Node, style: str, words: Mapping[str, str]) -> str:
    if node.merges:
        return f"Merge branch '{node.merges}'\n"
    if node.key == "root":
        return (
            random.choice((f"{words['package']}: first version", "Start from the notebook")) + "\n"
        )
    catalogue = steps()
    if node.key in catalogue:
        step = catalogue[node.key]
        subject, kind, body = random.choice(step.subjects), step.kind, step.body
    else:
        step = catalogue[node.key.removesuffix("_fixed")]
        subject, kind, body = random.choice(step.repairs), "fix", ""
    first = subject.split()[0]
    lowered = subject if sum(map(str.isupper, first)) > 1 else subject[0].lower() + subject[1:]
    told = style.format(Subject=subject, subject=lowered, area=step.area, kind=kind)
    return f"{told}\n\n{body}\n" if body else f"{told}\n"


def _planted(nodes: Sequence[_Node], commits: Mapping[str, NewCommit]) -> Iterator[Planted]:
    for node in nodes:
        plant = steps()[node.key].plant if node.key in steps() else None
        if plant is not None:
            subject = commits[node.key].message.splitlines()[0]
            yield Planted(plant.kind, node.key, plant.task, plant.metric, plant.truth, subject)
