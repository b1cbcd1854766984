"""A Ray cluster on this machine for tests: three nodes, each a set of processes of its own with one CPU.

`python -m tests.ray_cluster KILLS` kills a random node at a random moment that often, in turn of `clean` and of
`find_duplicates`, and compares what they publish with what the local engine does.
"""

import contextlib
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

from tests.dataprep.corpora import digests
from tests.pipelines.test_stage import write_jsonl

ROOT = Path(__file__).parents[1]
STORE = 80 << 20
"""Bytes of a node's object store, which holds nothing large."""


class TestCluster:
    """The first node is the driver's, and stays; the others can be killed."""

    __test__ = False

    def __init__(self, first_cpus: int = 1) -> None:
        from ray.cluster_utils import Cluster

        self.folder = tempfile.mkdtemp(prefix="ray-test-", dir="/tmp")
        Path("/tmp/ray").mkdir(exist_ok=True)  # where Ray notes the address, wherever its files are
        first = {"num_cpus": first_cpus, "node_name": "mill-0", "object_store_memory": STORE}
        first |= {"include_dashboard": False, "temp_dir": self.folder}
        self._cluster = Cluster(initialize_head=True, head_node_args=first)
        self._number = 0
        self.nodes: list[Any] = []
        self.address: str = self._cluster.address

    def add(self, environment: Mapping[str, str] | None = None, memory: int | None = None) -> str:
        """Add a node; return its name. `memory`: bytes for tasks, or what Ray finds free."""
        self._number += 1
        name = f"mill-{self._number}"
        more = {"memory": memory} if memory else {}
        node = self._cluster.add_node(
            num_cpus=1, node_name=name, object_store_memory=STORE, env_vars=dict(environment or {}), **more
        )
        self.nodes.append(node)
        return name

    def kill(self, number: int) -> None:
        """Kill all processes of a node, as a power cut does."""
        self._cluster.remove_node(self.nodes.pop(number), allow_graceful=False)

    def close(self) -> None:
        self._cluster.shutdown()
        subprocess.run(["rm", "-rf", self.folder], check=True)


@contextlib.contextmanager
def cluster(first_cpus: int = 1, others: int = 2) -> Generator[TestCluster]:
    """Start the first node and others; their workers find the code by PYTHONPATH."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), before]))
    made = TestCluster(first_cpus)
    try:
        for _ in range(others):
            made.add()
        yield made
    finally:
        made.close()
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def start(module: str, *arguments: object) -> "subprocess.Popen[str]":
    """Start a stage in a process of its own."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True)


def main() -> None:
    """Kill a random node at a random moment, again and again."""
    kills = int(sys.argv[1])
    chance = random.Random(sys.argv[2] if len(sys.argv) > 2 else "0")
    same = 0
    with tempfile.TemporaryDirectory() as folder, cluster() as nodes:
        base = Path(folder)
        for number in range(8):
            write_jsonl(base / "raw" / f"{number}.jsonl", 60 + number)
        stages = {"dataprep.clean": base / "raw", "dataprep.find_duplicates": base / "wanted-clean"}
        for module, source in stages.items():
            wanted = base / f"wanted-{module.removeprefix('dataprep.')}"
            assert start(module, source, wanted).wait() == 0
        seconds = dict.fromkeys(stages, 0.0)
        for number in range(-2, kills):  # the first two are to know how long a run takes
            module = [*stages][number % 2]
            name = module.removeprefix("dataprep.")
            output = base / f"{name}-{number}"
            began = time.monotonic()
            process = start(module, stages[module], output, "--engine", "ray", "--ray-address", nodes.address)
            moment = chance.uniform(1.5, seconds[module])
            if number >= 0:
                time.sleep(moment)
                at_work = process.poll() is None
                nodes.kill(chance.randrange(len(nodes.nodes)))
            stderr = process.communicate()[1]
            if number < 0:
                seconds[module] = time.monotonic() - began
                continue
            equal = process.returncode == 0 and digests(output) == digests(base / f"wanted-{name}")
            same += equal
            outcome = "same" if equal else f"DIFFERS: status {process.returncode}: {stderr}"
            took = time.monotonic() - began
            when = f"{moment:.2f} s" if at_work else "the end"
            print(f"{number + 1}: {name}, a node killed after {when}, done after {took:.1f} s: {outcome}", flush=True)
            nodes.add()
    print(f"{same} of {kills} the same")


if __name__ == "__main__":
    main()
