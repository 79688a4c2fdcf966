"""Compare what `celedger profile --try` says of a switch with the same switch written by hand:
`python benchmarks/tries.py [TRAINING...] [--rounds N]`. Both run in turns under the same clock."""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from celedger.lab.diagnose.trace import processes, records
from celedger.lab.diagnose.tries import Runs, step_seconds
from celedger.trial.diagnostic import folder_of
from celedger.trial.training_variables import child_copy

FOLDER = Path(__file__).with_suffix("")
STEPS = 70
SWITCHES = {
    "cnn": ("workers=2", "channels_last", "fused", "amp", "inplace", "compile"),
    "transformer": ("checkpointing", "fused", "amp", "compile"),
    "regression": ("fused", "amp", "compile"),
    "residual": ("channels_last", "checkpointing", "inplace", "fused", "amp", "compile"),
}


def run(name: str, hand: str, switch: str, folder: Path) -> dict[str, object]:
    """Return the probe's event of a training with a switch by hand, or thrown from outside."""
    folder.mkdir(parents=True)
    child = child_copy(folder.parent / "child", folder_of("profile"))
    kind, _, value = switch.partition("=")
    probe = {"kind": "profile", "switch": kind, "value": value, "steps": STEPS}
    env = {
        **os.environ, "PYTHONPATH": str(child),
        "CELEDGER_PROBE": json.dumps(probe), "CELEDGER_PROBE_OUT": str(folder),
    }  # fmt: skip
    argv = [sys.executable, str(FOLDER / f"{name}.py"), hand]
    subprocess.run(argv, check=True, env=env, capture_output=True)
    (training,) = processes(folder)
    return next(records(training, "profile"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trainings", nargs="*", metavar="TRAINING", default=list(SWITCHES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--switches", nargs="*", default=None)
    asked = parser.parse_args()
    far = 0
    with tempfile.TemporaryDirectory() as scratch:
        for name in asked.trainings:
            switches = [s for s in SWITCHES[name] if asked.switches is None or s in asked.switches]
            kinds = [("", "")] + [pair for s in switches for pair in ((s, ""), ("", s))]
            runs = {kind: Runs() for kind in kinds}
            for number in range(asked.rounds):
                for at, kind in enumerate(kinds if number % 2 == 0 else kinds[::-1]):
                    folder = Path(scratch, name, str(number), str(at))
                    runs[kind].events[number] = run(name, *kind, folder)
            base = step_seconds(runs["", ""])
            for switch in switches:
                log = {
                    way: sum(math.log(t / base[n]) for n, t in step_seconds(runs[kind]).items())
                    / asked.rounds
                    for way, kind in (("hand", (switch, "")), ("try", ("", switch)))
                }
                hand, tried = (math.exp(log[way]) for way in ("hand", "try"))
                bits = runs[switch, ""].events[0]["losses"] == runs["", switch].events[0]["losses"]
                apart = tried / hand - 1
                far += abs(apart) > 0.10
                print(
                    f"{name:12} {switch:14} by hand {hand - 1:+7.1%}  --try {tried - 1:+7.1%}  "
                    f"apart {apart:+6.1%}  losses {'equal' if bits else 'differ'}",
                    flush=True,
                )
    print(f"{far} further apart than 10 %")
    sys.exit(far > 0)


if __name__ == "__main__":
    main()
