"""A Ray cluster of two nodes that cannot open the folder HIDDEN: it is empty in their mount
namespace. `python ray_cluster.py HIDDEN HOME` writes the address, then kills the node of each
number that it reads, and ends with its input."""

from __future__ import annotations

import sys
from pathlib import Path

from ray.cluster_utils import Cluster

SMALL = 80 << 20  # bytes of an object store


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(hidden: Path, home: Path) -> None:
    assert list(hidden.iterdir()) == []
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 0, "include_dashboard": False, "object_store_memory": SMALL},
    )
    nodes = [
        cluster.add_node(
            num_cpus=1,
            object_store_memory=SMALL,
            env_vars={
                "XDG_CACHE_HOME": str(home / name),
                "CELEDGER_LOCK_DIR": str(home / name / "locks"),
            },
        )
        for name in ("one", "two")
    ]
    say(cluster.address)
    for line in sys.stdin:
        cluster.remove_node(nodes[int(line)], allow_graceful=False)
        say("killed")
    cluster.shutdown()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
