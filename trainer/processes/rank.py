"""Which process of how many this is, by the variables of torchrun or srun, and where rank 0 is found."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pipelines.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Rank:
    """The number of a process among all processes, and among those of its machine."""

    number: int
    size: int
    local_number: int
    local_size: int


def rank_from_environment(environment: Mapping[str, str]) -> Rank | None:
    """Return the rank that torchrun or srun gave this process; None if neither started it."""
    if {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR"} <= environment.keys():
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
        return Rank(*(int(environment[name]) for name in names))
    # srun sets these for each task; a batch script outside srun has the job's SLURM_NTASKS only.
    if int(environment.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
        names = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")
        per_node = re.match(r"\d+", environment.get("SLURM_STEP_TASKS_PER_NODE", "1"))
        return Rank(*(int(environment[name]) for name in names), local_size=int(per_node[0]) if per_node else 1)
    return None


def starts_its_node(environment: Mapping[str, str]) -> bool:
    """Return whether srun started one task on each of several nodes, so that this one starts its node's processes."""
    if "RANK" in environment or int(environment.get("SLURM_STEP_NUM_TASKS", "1")) < 2:
        return False
    return re.fullmatch(r"1(\(x\d+\))?", environment.get("SLURM_STEP_TASKS_PER_NODE", "")) is not None


def is_restarted_with_fewer(environment: Mapping[str, str]) -> bool:
    """Return whether torchrun starts the processes again with those that are left, if some are lost."""
    return int(environment.get("TORCHELASTIC_MAX_RESTARTS", "0")) > 0


def rendezvous_environment(rank: Rank, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of torch's `env://` that a process of srun lacks."""
    if "RANK" in environment:
        return {}
    variables = {"RANK": str(rank.number), "WORLD_SIZE": str(rank.size), "LOCAL_RANK": str(rank.local_number)}
    if "MASTER_ADDR" not in environment:
        variables["MASTER_ADDR"] = first_host(environment.get("SLURM_STEP_NODELIST", ""))
    if "MASTER_PORT" not in environment:
        # Two jobs on one machine must not share a port.
        variables["MASTER_PORT"] = str(20000 + int(environment.get("SLURM_JOB_ID", "0")) % 20000)
    return variables


def first_host(nodelist: str) -> str:
    """Return the first host of Slurm's compressed list."""
    if not (found := hosts(nodelist)):
        raise ConfigError(f"SLURM_STEP_NODELIST {nodelist!r}: no host in it; set MASTER_ADDR")
    return found[0]


def hosts(nodelist: str) -> list[str]:
    """Return the hosts of Slurm's compressed list: `gpu[07-08,12],login1` -> gpu07, gpu08, gpu12, login1."""
    found: list[str] = []
    for name, inside in re.findall(r"([^,\[\]]+)(?:\[([^\]]*)\])?", nodelist):
        for part in inside.split(","):
            first, _, last = part.partition("-")
            numbers = range(int(first), int(last or first) + 1) if first.isdecimal() else ()
            found += [f"{name}{number:0{len(first)}d}" for number in numbers] if inside else [name]
    return found
