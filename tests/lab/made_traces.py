"""Traces as celedger.lab.probes.trace writes them, made without a training."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from celedger.lab.diagnose.trace import Trace, read


class Writer:
    """A training of a few modules, told event by event; the tensors are numpy arrays."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.folder, self.events, self.values, self.rows = folder, [], [], []
        self.offset = self.row = 0
        self.step = 0

    def tensor(self, values: Any, *, dtype: str = "float32", gradient: bool = True) -> dict:
        array = np.asarray(values, dtype=np.float64)
        data = array.astype("<f8").tobytes()
        told = {
            "d": dtype, "s": list(array.shape), "g": gradient, "o": self.offset, "k": array.size,
            "h": hashlib.sha1(data).hexdigest()[:16], "f": bool(np.isfinite(array).all()),
        }  # fmt: skip
        self.values.append(data)
        self.offset += array.size
        return told

    def add(self, kind: str, **event: Any) -> None:
        early = kind in ("module", "init", "draw", "site")
        self.events.append({"k": kind, **({} if early else {"t": self.step}), **event})

    def site(self, number: int, *frames: Sequence[Any]) -> None:
        self.add("site", id=number, s=[list(frame) for frame in frames])

    def module(self, path: str, kind: str = "torch.nn.Linear", site: int = -1, **settings: Any):
        shapes = settings.pop("shapes", {})
        self.add("module", p=path, c=kind, a=settings, f=[], w=site, s=shapes)

    def init(
        self, path: str, values: Any, made: str = "normal_", literals: str = "_", **more: Any
    ) -> None:
        tensor = self.tensor(values)
        self.add(
            "init", p=path, r="parameter", x=tensor, o=made, l=literals.split(", "), w=-1, **more
        )

    def enter(self, path: str, values: Any, under: str | None = None, **more: Any) -> None:
        self.add("enter", p=path, n=0, c="", tr=more.pop("train", True), u=under, ac=None, w=-1,
                 x=[self.tensor(values, gradient=under is not None)], **more)  # fmt: skip

    def call(self, name: str, path: str | None, values: Any, literals: str = "_", **more: Any):
        more = {"i": [], "w": more.pop("site", -1), **more}
        self.add("call", o=name, p=path, n=0, l=literals.split(", "),
                 x=[self.tensor(values)], **more)  # fmt: skip

    def leave(self, path: str, values: Any, **more: Any) -> None:
        self.add("leave", p=path, n=0, x=[self.tensor(values)], **more)

    def learn(self, loss: float, gradients: dict, weights: dict, lr: float = 0.1, **hyper: Any):
        """Loss, gradients, one step of the optimiser, and the end of the step."""
        self.add("loss", x=[self.tensor(loss)])
        self.add("hyper", p="0", c="torch.optim.SGD", v=hyper.get("groups", [{"lr": lr}]),
                 of=hyper.get("of", [list(weights)]), w=-1, at=-1, f=[])  # fmt: skip
        for name, values in gradients.items():
            self.add("pgrad", p=name, x=[self.tensor(values)] if values is not None else [])
        for name, values in weights.items():
            self.add("param", p=name, x=[self.tensor(values)])
        mark = hashlib.sha1(repr(sorted((k, np.asarray(v).tolist()) for k, v in weights.items()))
                            .encode()).hexdigest()  # fmt: skip
        self.add("pulse", loss=[[str(loss), loss]], params=mark,
                 random={"torch": "0"})  # fmt: skip
        self.step += 1

    def batch(self, role: str, rows: Iterable[int], position: int = 0) -> None:
        found = list(rows)
        self.rows += found
        self.add("rows", r=role, p="", q=position, o=self.row, m=len(found))
        self.row += len(found)

    def done(self) -> Trace:
        self.add("end", cut=False, inside=[], files=[])
        lines = "".join(json.dumps(event) + "\n" for event in self.events)
        (self.folder / "events.jsonl").write_text(lines)
        (self.folder / "values.bin").write_bytes(b"".join(self.values))
        (self.folder / "rows.bin").write_bytes(np.array(self.rows, dtype="<u8").tobytes())
        return read(self.folder)
