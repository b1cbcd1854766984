"""Finding one's place under torchrun and Slurm, and stopping on a signal."""

import os
import signal

import pytest
import torch

from pipelines.errors import ConfigError
from trainer.config import ParallelConfig
from trainer.process import Place, StopFlag, first_host, place_from_environment, prepare, rendezvous_environment

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "host",
    "MASTER_PORT": "29500",
}
SRUN = {
    "SLURM_PROCID": "5",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
    "SLURM_STEP_NODELIST": "gpu[07-08]",
    "SLURM_JOB_ID": "1234567",
}


def test_torchrun_and_srun_say_the_place() -> None:
    assert place_from_environment(TORCHRUN) == Place(5, 8, 1, 4)
    assert place_from_environment(SRUN) == Place(5, 8, 1, 4)


def test_outside_of_them_there_is_no_place() -> None:
    assert place_from_environment({}) is None
    batch_script = {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_LOCALID": "0"}
    assert place_from_environment(batch_script) is None


def test_processes_of_srun_meet_at_the_first_host() -> None:
    place = Place(5, 8, 1, 4)
    found = rendezvous_environment(place, SRUN)
    assert found["MASTER_ADDR"] == "gpu07"
    assert 20000 <= int(found["MASTER_PORT"]) < 40000
    assert (found["RANK"], found["WORLD_SIZE"], found["LOCAL_RANK"]) == ("5", "8", "1")
    assert rendezvous_environment(place, {**SRUN, "MASTER_ADDR": "x", "MASTER_PORT": "7"}).keys() == {
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
    }
    assert rendezvous_environment(place, TORCHRUN) == {}


@pytest.mark.parametrize(
    ("nodes", "host"), [("gpu[07-09,12],login1", "gpu07"), ("a1,a2", "a1"), ("node-3", "node-3"), ("r[5]", "r5")]
)
def test_the_first_host_of_a_list(nodes: str, host: str) -> None:
    assert first_host(nodes) == host


def test_an_empty_list_of_hosts_is_refused() -> None:
    with pytest.raises(ConfigError, match="set MASTER_ADDR"):
        first_host("")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_sets_the_flag_and_nothing_else(number: signal.Signals) -> None:
    flag, before = StopFlag(), signal.getsignal(number)
    with flag.listening(interrupts=True):
        os.kill(os.getpid(), number)
        assert flag.requested
    assert signal.getsignal(number) == before
    other = StopFlag()
    with other.listening(interrupts=False):
        os.kill(os.getpid(), signal.SIGINT)
        assert not other.requested


@pytest.mark.parametrize(("visible", "number"), [(8, 3), (1, 0)])
def test_a_process_that_is_shown_one_gpu_only_takes_it(
    monkeypatch: pytest.MonkeyPatch, visible: int, number: int
) -> None:
    """Slurm's --gpus-per-task calls it 0 in every process."""
    taken: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    monkeypatch.setattr("trainer.process.set_arithmetic", lambda **_: None)
    process = prepare(Place(3, 8, 3, 8), ParallelConfig(), StopFlag())
    assert taken == [process.device] == [torch.device("cuda", number)]


def test_asking_for_a_gpu_that_a_process_does_not_see_is_refused_and_not_trained_on_the_cpu() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(ConfigError, match=r"parallel\.device cuda: torch sees no GPU in process 3"):
        prepare(Place(3, 4, 3, 4), ParallelConfig(device="cuda"), StopFlag())
