"""An engine whose nodes are folders of this machine, each a process that keeps one order: as an
actor of Ray is, it can be killed, and it outlives the head."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import Any

from celedger.engines.cluster import LostNode
from celedger.engines.node_keeper import Keeper


class Remote:
    """A keeper in another process."""

    def __init__(self, place: Path) -> None:
        self._port = int(place.read_text())

    def __getattr__(self, method: str) -> Any:
        def call(*arguments: object) -> Any:
            try:
                with Client(("127.0.0.1", self._port)) as connection:
                    connection.send((method, arguments))
                    answer = connection.recv()
            except (OSError, EOFError) as error:
                raise LostNode("the node went away") from error
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call


@dataclass
class Loopback:
    """`nodes` are names; `environment` is what a node's processes get besides."""

    folder: Path
    nodes: tuple[str, ...] = ("one", "two")
    environment: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    name: str = "ray"
    hired: list[tuple[str, str]] = field(default_factory=list)  # ulid, node

    @property
    def address(self) -> str:
        return str(self.folder)

    def options(self) -> str:
        """Return what makes the same cluster in another process."""
        facts = {"folder": str(self.folder), "nodes": self.nodes, "environment": self.environment}
        return json.dumps(facts)

    @property
    def workers(self) -> int:
        return len(self.nodes)

    def device(self, wish: str) -> str:
        return "cpu"

    def hire(self, ulid: str, device: str, avoid: Collection[str]) -> Remote:
        number = len(self.hired)
        node = [name for name in self.nodes if name not in avoid][
            number % (len(self.nodes) - len(avoid))
        ]
        self.hired.append((ulid, node))
        place = self._place(ulid)
        own = {
            "XDG_CACHE_HOME": str(self.folder / node),
            "CELEDGER_LOCK_DIR": str(self.folder / node / "locks"),
            **self.environment.get(node, {}),
        }
        process = subprocess.Popen(
            [sys.executable, __file__, ulid, str(place)], env={**os.environ, **own},
            start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        place.with_suffix(".pid").write_text(str(process.pid))
        deadline = time.monotonic() + 30
        while not place.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return Remote(place)

    def find(self, ulid: str) -> Remote:
        if not self._place(ulid).exists():
            raise LostNode("its keeper is gone")
        return Remote(self._place(ulid))

    def release(self, ulid: str) -> None:
        try:
            os.kill(int(self._place(ulid).with_suffix(".pid").read_text()), signal.SIGKILL)
            self._place(ulid).unlink(missing_ok=True)
        except (FileNotFoundError, ProcessLookupError):
            pass

    def close(self) -> None:
        pass

    def _place(self, ulid: str) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder / f"{ulid}.port"


def serve(ulid: str, place: Path) -> None:
    """Keep one order, for whoever connects."""
    from threading import Thread

    class NamedKeeper(Keeper):
        def node(self) -> str:
            return Path(os.environ["XDG_CACHE_HOME"]).name

    keeper = NamedKeeper(ulid)

    def answer(connection: Any) -> None:
        with connection:
            method, arguments = connection.recv()
            try:
                connection.send(getattr(keeper, method)(*arguments))
            except Exception as error:
                connection.send(error)

    with Listener(("127.0.0.1", 0), backlog=16) as listener:
        draft = place.with_suffix(".new")
        draft.write_text(str(listener.address[1]))
        draft.rename(place)
        while True:
            Thread(target=answer, args=(listener.accept(),), daemon=True).start()


def program(options: str, words: list[str]) -> None:
    """Run a command line whose engine `ray` is this cluster."""
    from celedger import __main__
    from celedger.engines import ray

    facts = json.loads(options)
    cluster = Loopback(Path(facts["folder"]), tuple(facts["nodes"]), facts["environment"])
    ray.Ray = lambda _: cluster  # type: ignore[assignment,misc]
    sys.argv[1:] = words
    __main__.main()


if __name__ == "__main__":
    if sys.argv[1] == "head":
        program(sys.argv[2], sys.argv[3:])
    else:
        serve(sys.argv[1], Path(sys.argv[2]))
