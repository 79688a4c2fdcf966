"""The interface of a cluster, for the head: find a node for an order, and carry bytes to
and fro. It knows nothing of trials, suites and ledgers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from celedger.base.errors import MachineError
from celedger.engines.node_keeper import Greeting


class LostNode(MachineError):
    """A node died, or cannot be reached any more. Its trial may run on another one."""


class OtherEnvironment(MachineError):
    """The environment of a node is not the one in which the head compares trials."""


class KeeperOf(Protocol):
    """A `keeper.Keeper` on a node. Each method raises LostNode."""

    def greet(self, repository: str) -> Greeting: ...
    def start(self, files: Mapping[str, bytes]) -> None: ...
    def read(self, offset: int) -> tuple[bytes, bool]: ...
    def node(self) -> str: ...
    def complaint(self) -> str: ...
    def end(self, reason: str) -> None: ...
    def cancel(self) -> None: ...
    def forget(self) -> None: ...


class Cluster(Protocol):
    """Brings orders to nodes. Its methods may be called from several threads."""

    name: str
    address: str

    @property
    def workers(self) -> int:
        """Return how many trials its nodes can run at once."""

    def device(self, wish: str) -> str:
        """Return the device of a node for `auto`, `cpu` or `cuda:N`. Raises MachineError if no
        node has one."""

    def hire(self, ulid: str, device: str, avoid: Collection[str]) -> KeeperOf:
        """Return a keeper on a node with a free device, waiting for one; on none of these nodes (of
        its own names) to avoid. Raises MachineError if there is no other node."""

    def find(self, ulid: str) -> KeeperOf:
        """Return the keeper that another head hired for an order. Raises LostNode."""

    def release(self, ulid: str) -> None:
        """End the keeper of an order, also one that waits for a node."""

    def close(self) -> None:
        """Leave the cluster. Keepers go on."""
