"""The scripts of examples/slurm: on a real Slurm where there is one, else by the stand-ins of tests/pages.py.

A trial Slurm has no GPUs and few cores, so lines that ask for these are left out, and the training is one of seconds.
"""

import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.pages import SLURM
from tests.sample_project import ROOT, environment
from tests.trainer.small import Road, pretrain_arguments

EXAMPLES = ROOT / "examples/slurm"


def script(name: str, command: str, folder: Path) -> Path:
    """An example with the command of a small training."""
    text = (EXAMPLES / name).read_text()
    text = re.sub(r"#SBATCH --(gpus|cpus)-.*\n", "", text).replace("ntasks-per-node=8", "ntasks-per-node=1")
    text = text.replace("--time=24:00:00", "--time=30").replace("--nproc-per-node 8", "--nproc-per-node 1")
    text = re.sub(r"python -m trainer\.pretrain \\\n(.*\\\n)*.*?(?= &)", command, text)
    if name == "torchrun.slurm":
        text = re.sub(r"-m trainer\.pretrain .*", command.removeprefix("python "), text)
    text = re.sub(r"dvc repro .*(?= &)", command, text)
    file = folder / name
    file.write_text(text)
    return file


def is_slurm() -> bool:
    return shutil.which("sinfo") is not None and not subprocess.run(["sinfo", "-h"], capture_output=True).returncode


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["tasks.slurm", "repro.slurm", "torchrun.slurm"])
def test_an_example_trains(name: str, road: Road, tmp_path: Path) -> None:
    arguments = pretrain_arguments(road.train, road.val, tmp_path / "out")
    file = script(name, f"python -m trainer.pretrain {' '.join(arguments)}", tmp_path)
    meet = {"MASTER_ADDR": "127.0.0.1"} if name != "torchrun.slurm" else {}
    variables = environment(PYTHONPATH=str(ROOT), GLOO_SOCKET_IFNAME="lo", **meet)
    if is_slurm():
        submit = ["sbatch", "--wait", f"--output={tmp_path}/job.log", f"--chdir={tmp_path}", str(file)]
        if name == "torchrun.slurm":
            file.write_text(file.read_text().replace("$HOST:29500", "127.0.0.1:29517"))
    else:
        for tool, text in SLURM.items():
            (tmp_path / "inputs/slurm").mkdir(parents=True, exist_ok=True)
            (tmp_path / "inputs/slurm" / tool).write_text(f"#!/bin/bash\nset -eu\n{text}")
            (tmp_path / "inputs/slurm" / tool).chmod(0o755)
        submit = [str(tmp_path / "inputs/slurm/sbatch"), str(file)]
    done = subprocess.run(submit, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
    log = (tmp_path / "job.log").read_text() if (tmp_path / "job.log").exists() else ""
    assert done.returncode == 0, done.stdout + done.stderr + log
    assert (tmp_path / "out/run.json").exists()


STEP = """\
#!/bin/bash
# A training that saves when it is asked to.
trap 'echo saved >> "$FOLDER/log"; exit 75' USR1
echo started >> "$FOLDER/log"
if [ "$(grep -c started "$FOLDER/log")" = 2 ]; then exit 0; fi
for _ in $(seq 400); do sleep 0.05; done
"""


@pytest.mark.parametrize("name", ["tasks.slurm", "repro.slurm"])
def test_a_signal_before_the_time_limit_saves_and_the_job_goes_back_into_the_queue(name: str, tmp_path: Path) -> None:
    """Slurm signals the script alone; what it then does to its steps and to itself is what counts."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool, text in {
        "training": STEP,
        "scancel": '#!/bin/bash\necho "scancel $*" >> "$FOLDER/log"\npkill -USR1 --parent "$PPID" training\n',
        "scontrol": '#!/bin/bash\necho "scontrol $*" >> "$FOLDER/log"\n',
    }.items():
        (tools / tool).write_text(text)
        (tools / tool).chmod(0o755)
    text = (EXAMPLES / name).read_text()
    text = re.sub(r"srun --kill.*?(?= &\n)", "training", text, flags=re.DOTALL) if "\nsrun" in text else text
    text = re.sub(r"MILLRACE_LAUNCH=.*?(?= &\n)", "training", text)
    (tmp_path / name).write_text(text)
    variables = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "FOLDER": str(tmp_path)}
    job = subprocess.Popen(["bash", name], cwd=tmp_path, env=variables)
    log = tmp_path / "log"
    deadline = time.monotonic() + 30
    while not log.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    job.send_signal(10)
    assert job.wait(30) == 75
    assert log.read_text().splitlines() == ["started", "scancel --signal=USR1 7", "saved", "scontrol requeue 7"]
    assert subprocess.run(["bash", name], cwd=tmp_path, env=variables, check=False).returncode == 0
    assert "requeue" not in log.read_text().splitlines()[-1], "what ends well is not queued again"
