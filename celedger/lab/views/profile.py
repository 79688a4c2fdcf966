"""`celedger profile` of one commit or of two, as text. Its documents are those of
celedger/lab/diagnose/profile.py and slower.py. Memory is in memory.py, pictures in
profile_picture.py."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from celedger.base.model import Commit
from celedger.lab.diagnose.slower import total
from celedger.lab.diagnose.speed_advice import MEANING, largest_operators, module, stolen, waiter
from celedger.lab.diagnose.stalls import NEIGHBOURS, Document
from celedger.lab.views.explain import columns, hunk_lines
from celedger.views.document import (
    PLUS_MINUS,
    amount,
    clip,
    count,
    duration,
    measure,
    percent,
    plain,
    short,
    table,
)

OPERATORS = 12  # rows of the text; JSON has all
LINES = 5
DIFFERENCES = 8  # of a table of two commits; the others go into one row


@dataclass(frozen=True, slots=True)
class ProfileTarget:
    """The target of a profile: a task at one commit, or at two."""

    task: str
    commits: tuple[Commit, ...]
    seed: int

    def titles(self, width: int) -> list[str]:
        """Return one line for each commit; two as before and after."""
        names = ["  before  ", "  after   "] if len(self.commits) == 2 else [f"{self.task} at "]
        lines = zip(names, self.commits, strict=True)
        return [clip(f"{n}{short(c.sha)} {plain(c.subject)}", width) for n, c in lines]

    def fields(self) -> dict[str, object]:
        """Return the target's fields in JSON."""
        names = ("before", "after") if len(self.commits) == 2 else ("commit",)
        shas = (commit.sha for commit in self.commits)
        return {"task": self.task, **dict(zip(names, shas, strict=True)), "seed": self.seed}


def seconds(value: float) -> str:
    return measure(value, unit="s", significant=3)


def size(value: float) -> str:
    return measure(value, unit="B", significant=3)


def profile_text(target: ProfileTarget, document: Document, *, width: int = 100) -> str:
    settings, steps = document["environment"], document["steps"]
    where = f"{settings['torch']}, {settings['device']}, {count(settings['threads'], 'thread')}"
    ran = f"{count(steps['count'], 'step')}, {steps['timed']} timed"
    rank = f", {document['rank']}" if document["rank"] else ""
    head = [*target.titles(width), f"seed {target.seed}{rank}, torch {where}; {ran}"]
    if (delayed := document["delayed_share"] or 0.0) >= 0.005:
        head.append(
            f"other processes had the core for {percent(delayed)} of the time; it is left out below"
            + (", and advice on operators with it" if stolen(document) else "")
        )
    lines = [
        (percent(line["share"]), line["phase"], plain(line["place"]))
        for line in document["lines"][:LINES]
        if line["share"] >= 0.01
    ]
    advice = [
        f"  {row['rule']}: {plain(row['figure'])}\n    try: {row['try']}"
        for row in document["advice"]
    ]
    switches = dict.fromkeys(one for row in document["advice"] for one in row["switches"])
    if switches:
        words = [target.commits[0].sha[:12], target.task, *(f"--try={one}" for one in switches)]
        advice.append(f"  measured by `{shlex.join(['celedger', 'profile', *words])}`")
    parts = [
        "\n".join(clip(line, width) for line in head),
        _phases(document, width),
        _operators(document, width),
        table(columns(">share", "phase", "line of yours"), lines, width=width),
        _stalls(document),
        "\n".join(["advice", *advice] if advice else []),
    ]
    return "\n\n".join(filter(None, parts))


def profile_headline(document: Document) -> str:
    """Return how long a step takes, and in which phase most of it is spent."""
    step, *phases = document["phases"]
    text = f"a step takes {seconds(step['median'])}"
    if phases:
        longest = max(phases, key=lambda row: float(row["share"]))
        name = longest["name"]
        text += f", {percent(longest['share'])} of it: {MEANING.get(name, name)}"
    stalls = len(document["stalls"]["found"])
    return text + (f"; {count(stalls, 'stall')}" if stalls else "")


def stall_text(stall: Document) -> str:
    """Return one sentence: how often, how long, in which phase, at which line."""
    often = count(len(stall["steps"]), "step")
    if stall["every"] is not None:
        often += f", every {stall['every']} steps"
    doing = "computing and waiting"
    if stall["collector"]:
        doing = "Python's garbage collector"
    elif stall["computing"] >= 0.7:
        doing = "computing"
    elif stall["computing"] <= 0.3:
        doing = "waiting, without a processor"
    if stall["place"]:
        doing += f" at {plain(stall['place'])}"
    elif not stall["collector"]:
        doing += "; line unknown"
    return (
        f"{often}: {duration(stall['seconds'] / len(stall['steps']))} more each, "
        f"{percent(stall['share'])} of the time, in {MEANING[stall['phase']]}; {doing}"
    )


def _phases(document: Document, width: int) -> str:
    step, *phases = document["phases"]
    rows = [
        (
            MEANING.get(row["name"], row["name"]),
            *(seconds(row[name]) for name in ("median", "p90", "p99")),
            percent(row["share"]),
        )
        for row in (*phases, step)
    ]
    heads = columns("phase of a step", ">median", ">p90", ">p99", ">share")
    text = table(heads, rows, width=width)
    if (gpu := document["gpu"]) is not None:
        busy, idle = seconds(gpu["busy"]), percent(gpu["idle_share"])
        text += f"\nthe GPU works {busy} of a step and idles {idle}"
    evaluation = document["evaluation"]
    if times := evaluation["times"]:
        text += (
            f"\nevaluation and reports: {times} ×, {duration(evaluation['seconds'] / times)} "
            f"each, {percent(evaluation['share'])} of the training"
        )
    return text


def _operators(document: Document, width: int) -> str:
    operators = document["operators"]
    if operators["problem"]:
        return f"operators unknown: {plain(operators['problem'])}"
    ranked = largest_operators(document)
    key = "device_seconds" if document["environment"]["device"] == "cuda" else "seconds"
    rows = [
        (
            plain(row["name"]), plain(module(row)), f"{row['calls']:.3g}", seconds(row[key]),
            percent(part), size(row["memory"]) if abs(row["memory"]) >= 1 else "",
        )
        for row, part in ranked[:OPERATORS]
    ]  # fmt: skip
    if not rows:
        return ""
    head = (
        f"operators of steps {operators['first_step']} to {operators['last_step']} (not timed "
        f"above), under torch.profiler: self time, of {seconds(operators['step_seconds'])} a step"
    )
    heads = columns("operator", "most of it in", ">calls", ">time", ">share", ">memory")
    rest = len(ranked) - len(rows)
    tail = f"\n… and {rest} more (--json has all)" if rest > 0 else ""
    return clip(head, width) + "\n" + table(heads, rows, width=width) + tail


def _stalls(document: Document) -> str:
    if document["steps"]["timed"] < 2 * NEIGHBOURS:
        return f"too few steps to tell stalls: {2 * NEIGHBOURS} timed ones are needed"
    stalls = document["stalls"]
    lines = [f"stall: {stall_text(stall)}" for stall in stalls["found"]] or ["no stalls"]
    if slow := len(stalls["unexplained"]):
        steps = count(slow, "slow step")
        lines.append(f"{steps} with no cause of their own and no period: nothing is concluded")
    if slow := len(stalls["machine"]):
        lines.append(f"{count(slow, 'slow step')} of the machine's: others had the core")
    return "\n".join(lines)


def verdict(document: Document) -> str:
    whole, word = document["whole"], document["verdict"]
    part = amount(whole["difference"], whole["before"], unit="s")
    if word == "same":
        return f"no difference beyond noise: a step takes {part}"
    if word == "undecided":
        return (
            f"undecided: a step takes {part}, within the noise of {count(document['runs'], 'run')}"
        )
    if whole["beyond_noise"]:
        return f"{word}: a step takes {part}"
    name, rows = document["decisive"], (document["added"], *document["phases"])
    row = next(row for row in rows if row["name"] == name)
    made = amount(row["difference"], whole["before"], unit="s")
    what = f"one phase, {MEANING.get(name, name)}, makes"
    if row is document["added"]:
        what = "operators added or removed make"
    return f"{word}: {what} {made} of a step (the whole step's {part} is within its noise)"


_MOST_OF_IT = 0.3  # share of a difference from which a function is named for it
_ADDED = 2  # operators


def difference_headline(document: Document) -> str:
    """Return the verdict, with what most of the difference is spent in and what was added."""
    whole = abs(document["whole"]["difference"])
    rows = [row for row in document["functions"] if row["beyond_noise"]]
    most = max(rows, key=lambda row: abs(row["difference"]), default=None)
    text = verdict(document)
    if most is not None and abs(most["difference"]) >= _MOST_OF_IT * whole:
        text += f", most of it in `{plain(most['name'])}` ({plain(most['where'])})"
    added = [row for row in document["operators"] if row["change"] == "added"]
    added.sort(key=lambda row: -row["difference"])
    names = ", ".join(f"{row['calls'][1]:.3g} × {plain(row['name'])}" for row in added[:_ADDED])
    return f"{text}; added: {names} a step" if names else text


def slower_sentence(document: Document) -> str:
    """Return the verdict with the difference of a whole step and its noise."""
    whole = document["whole"]
    noise = f"{PLUS_MINUS} {seconds(whole['noise'])} of {seconds(whole['before'])}"
    return f"{verdict(document)} ({_difference(whole)} {noise})"


def slower_text(target: ProfileTarget, document: Document, *, width: int = 100) -> str:
    whole, runs = document["whole"], count(document["runs"], "run")
    lines = [
        clip(f"{target.task}, seed {target.seed}, {runs} of each in turns", width),
        *target.titles(width),
        "",
        slower_sentence(document),
    ]
    if document["verdict"] == "undecided":
        lines.append("more runs tell more: --turns N, or a machine that does nothing else")
    lines += [f"new stall: {stall_text(stall)}" for stall in document["new_stalls"]]
    lines += [
        f"new wait for the device: {wait['times']:.3g} × {waiter(wait)} a step at {wait['place']}"
        for wait in document["new_waits"]
    ]
    for part, where in (("phases", ""), ("operators", "in"), ("functions", "file")):
        meaning = MEANING if part == "phases" else {}
        rows = [
            (
                plain(meaning.get(row["name"], row["name"])), plain(row["where"]),
                *(seconds(row[name]) for name in ("before", "after")), _difference(row),
                seconds(row["noise"]), _remark(row),
            )
            for row in (*largest(document[part]), whole)
        ]  # fmt: skip
        heads = columns(part[:-1], where, ">before", ">after", ">difference", ">noise", "")
        lines += ["", table(heads, rows, width=width)]
    for hunk in document.get("hunks", ())[:1]:
        if hunk["closeness"] <= 1:
            lines += ["", *hunk_lines(hunk)]
    return "\n".join(lines)


def largest(rows: Sequence[Document]) -> list[Document]:
    """Return the largest differences, first of those beyond noise or of operators added or removed;
    one row for the others, and the remainder, so that they still add up."""
    *ranked, remainder = rows
    ranked = [row for row in ranked if row["before"] or row["after"]]
    ranked.sort(key=lambda r: (not (r["beyond_noise"] or r["change"]), -abs(r["difference"])))
    others = ranked[DIFFERENCES:]
    together = [total(f"{len(others)} others", others)] if others else []
    return [*ranked[:DIFFERENCES], *together, remainder]


def _difference(row: Document) -> str:
    return measure(row["difference"], unit="s", signed=True, significant=3)


def _remark(row: Document) -> str:
    words = []
    if row["change"]:
        before, after = (f"{value:.3g}" for value in row["calls"])
        words.append(row["change"] if row["change"] != "calls" else f"{before} → {after} calls")
    if row["beyond_noise"]:
        words.append("slower" if row["difference"] > 0 else "faster")
    return ", ".join(words)
