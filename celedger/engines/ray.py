"""The engine Ray: an order's keeper is a detached actor, so that it outlives the head. The only
importer of ray."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any

from celedger.base import VERSION
from celedger.base.config import Config
from celedger.base.errors import MachineError
from celedger.base.model import Task
from celedger.engines.cluster import KeeperOf, LostNode
from celedger.engines.head import send_out
from celedger.engines.node_keeper import Keeper
from celedger.trial.runner import Bench
from celedger.trial.workplace import RemoteBench

_NAMESPACE = "celedger"
_EXTRA = "pip install ray"
_PATIENCE = 5.0  # seconds to reach a cluster
_THREADS = 4  # of an actor: one waits for lines while another is told to end


class ActorKeeper(Keeper):
    """A keeper that is an actor of Ray."""

    def node(self) -> str:
        import ray

        node: str = ray.get_runtime_context().get_node_id()
        return node


class Actor:
    """The methods of a keeper that is an actor, called from here."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def __getattr__(self, method: str) -> Callable[..., Any]:
        def call(*arguments: object) -> Any:
            import ray

            try:
                return ray.get(getattr(self._handle, method).remote(*arguments))
            except ray.exceptions.RayError as error:
                text = str(error)
                if match := re.search(r"No module named '(celedger[\w.]*)'", text):
                    raise MachineError(
                        f"a node of the Ray cluster lacks {match[1]}",
                        f"install celedger {VERSION} on all its nodes",
                    ) from error
                why = " ".join(text.strip().splitlines()[-2:])
                raise LostNode(f"its node was lost: {why[:300]}") from error

        return call


class Ray:
    """The nodes of a Ray cluster. `address` is its own, or "" for that of RAY_ADDRESS or of a
    cluster on this machine. Raises MachineError if there is none."""

    name = "ray"

    def __init__(self, address: str) -> None:
        self.address = address
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        try:
            import ray
        except ImportError as error:
            raise MachineError(f"the engine ray needs the package ray ({error})", _EXTRA) from error
        self._ray = ray
        # It would print what happens to nodes to stdout, which is the answer's.
        ray._private.worker.print_to_stdstream = lambda *_, **__: None
        address = address or os.environ.get("RAY_ADDRESS", "")
        handlers = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
        try:
            _reachable(address)
            ray.init(
                address=address or "auto", namespace=_NAMESPACE, log_to_driver=False,
                configure_logging=False, logging_level=logging.ERROR,
            )  # fmt: skip
        except Exception as error:  # Ray has no one kind for what may be wrong here
            where = f" at {address}" if address else ""
            reason = re.split(r"[.\n] |\n", str(error).strip())[0][:200]
            raise MachineError(
                f"no Ray cluster can be used{where}: {reason}",
                "start one with `ray start --head`, or set engine_address in your configuration",
            ) from error
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    @property
    def workers(self) -> int:
        """Return the GPUs of the cluster, or if there are none its nodes: on the CPU a trial has a
        node for itself."""
        nodes = self._nodes()
        return int(sum(node.get("GPU", 0) for node in nodes.values())) or len(nodes)

    def device(self, wish: str) -> str:
        gpus = any(node.get("GPU", 0) >= 1 for node in self._nodes().values())
        if wish.startswith("cuda") and not gpus:
            raise MachineError(
                "no node of the Ray cluster has a GPU",
                "use --device cpu, or start nodes with --num-gpus",
            )
        return "cuda:0" if gpus and wish != "cpu" else "cpu"

    def hire(self, ulid: str, device: str, avoid: Collection[str]) -> KeeperOf:
        kind = "CPU" if device == "cpu" else "GPU"
        nodes = self._nodes()
        if not any(r.get(kind, 0) >= 1 for node, r in nodes.items() if node not in avoid):
            raise MachineError(
                f"the Ray cluster has no {kind} on another node than the {len(avoid)} that refused",
                "let its nodes have equal environments",
            )
        refused = f"!in({','.join(sorted(avoid))})"
        actor = self._ray.remote(ActorKeeper).options(
            name=ulid, namespace=_NAMESPACE, lifetime="detached", max_concurrency=_THREADS,
            num_cpus=1, num_gpus=int(kind == "GPU"),
            **({"label_selector": {"ray.io/node-id": refused}} if avoid else {}),
            **({} if avoid else {"scheduling_strategy": "SPREAD"}),
        ).remote(ulid)  # fmt: skip
        keeper = Actor(actor)
        keeper.node()  # waits for it
        return keeper

    def find(self, ulid: str) -> KeeperOf:
        try:
            return Actor(self._ray.get_actor(ulid, namespace=_NAMESPACE))
        except ValueError as error:
            raise LostNode("its node is gone") from error

    def release(self, ulid: str) -> None:
        with suppress(ValueError):
            self._ray.kill(self._ray.get_actor(ulid, namespace=_NAMESPACE))

    def close(self) -> None:
        self._ray.shutdown()

    def _nodes(self) -> dict[str, dict[str, float]]:
        """Return the resources of the nodes that live and have a processor for trials, by id."""
        return {
            node["NodeID"]: node["Resources"]
            for node in self._ray.nodes()  # type: ignore[no-untyped-call]
            if node["Alive"] and node["Resources"].get("CPU", 0) >= 1
        }


def connect(bench: Bench, config: Config, tasks: Sequence[Task]) -> RemoteBench:
    """Return a bench like another, whose trials run on the nodes of the cluster that the settings
    name. Raises CeledgerError if there is no such cluster."""
    return send_out(bench, config, tasks, Ray(config.engine_address))


def _reachable(address: str) -> None:
    """Raise OSError if nobody listens at HOST:PORT. Ray itself would wait for a minute, and write
    to stderr meanwhile."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=_PATIENCE).close()
