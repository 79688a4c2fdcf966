"""An engine whose nodes are folders of this machine, each a process that keeps one order: as an
actor of Ray is, it can be killed, and it outlives the head."""

from __future__ import annotations

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

from celedger.engines.keeper import Keeper
from celedger.engines.seam import LostNode


class Remote:
    """A keeper in another process."""

    def __init__(self, address: Path) -> None:
        self._address = str(address)

    def __getattr__(self, method: str) -> Any:
        def call(*arguments: object) -> Any:
            try:
                with Client(self._address, "AF_UNIX") as connection:
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
    name: str = "loopback"
    address: str = ""
    hired: list[tuple[str, str]] = field(default_factory=list)  # ulid, node

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
        socket = self._socket(ulid)
        own = {
            "XDG_CACHE_HOME": str(self.folder / node),
            "CELEDGER_LOCK_DIR": str(self.folder / node / "locks"),
            **self.environment.get(node, {}),
        }
        process = subprocess.Popen(
            [sys.executable, __file__, ulid, str(socket)], env={**os.environ, **own},
            start_new_session=True,
        )  # fmt: skip
        socket.with_suffix(".pid").write_text(str(process.pid))
        deadline = time.monotonic() + 30
        while not socket.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return Remote(socket)

    def find(self, ulid: str) -> Remote:
        if not self._socket(ulid).exists():
            raise LostNode("its keeper is gone")
        return Remote(self._socket(ulid))

    def release(self, ulid: str) -> None:
        try:
            os.kill(int(self._socket(ulid).with_suffix(".pid").read_text()), signal.SIGKILL)
            self._socket(ulid).unlink(missing_ok=True)
        except (FileNotFoundError, ProcessLookupError):
            pass

    def close(self) -> None:
        pass

    def _socket(self, ulid: str) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder / f"{ulid}.s"


def serve(ulid: str, address: str) -> None:
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

    draft = address + ".new"
    with Listener(draft, "AF_UNIX", backlog=16) as listener:
        Path(draft).rename(address)
        while True:
            Thread(target=answer, args=(listener.accept(),), daemon=True).start()


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2])
