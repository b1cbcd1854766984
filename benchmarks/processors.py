"""The same bytes on any processor: the sample's training natively and on emulated processors, compared by manifests.

    dvc repro tokenize && dvc repro glue_tokenize
    python -m benchmarks.processors --cost
    python -m benchmarks.processors --processors native EPYC Skylake-Client Haswell Nehalem --determinism portable auto

Needs qemu-user (Debian: `apt-get install qemu-user`) for all but `native`. qemu computes floating point exactly, so
what differs is what the instruction sets of the processors make of the same program. A few steps take minutes.
An emulated process restarts through a script in place of Python, since the kernel would run Python natively. The
training processes start as under torchrun, since under qemu 7.2 a process forked from one with threads cannot have any.
"""

import argparse
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from pipelines import store
from pipelines.manifest import MANIFEST
from trainer.processes.portable import VARIABLES

ROOT = Path(__file__).parents[1]


def python(processor: str, folder: Path) -> Path:
    """Return a Python that runs on `processor`: a virtual environment whose Python is a script that starts qemu."""
    if processor == "native":
        return Path(sys.executable)
    emulator, own = shutil.which("qemu-x86_64"), folder / processor
    if emulator is None:
        raise SystemExit("qemu-x86_64: not found; install qemu-user, or name no processor but native")
    (own / "bin").mkdir(parents=True)
    shutil.copy(Path(sys.prefix) / "pyvenv.cfg", own)
    (own / "lib").symlink_to(Path(sys.prefix) / "lib")
    script = own / "bin" / "python"
    real = Path(sys.executable).resolve()
    script.write_text(f'#!/bin/sh\nexec {emulator} -cpu {processor} -0 "{script}" "{real}" "$@"\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return script


def commands(data: Path, out: Path, steps: int, determinism: str) -> Iterator[tuple[str, list[str], Path]]:
    """Yield a name, the arguments and the output of each command."""
    common = ["--params", "params.yaml", "--log-level", "error", "--parallel.determinism", determinism]
    short = ["--steps", str(steps), "--warmup-steps", "1", "--validation-samples", "8"]
    tokens = [f"{data}/tokenize/train", f"{data}/tokenize/val"]
    for pp in (1, 2):
        made, layout = out / f"pretrain-{pp}", f"--parallel.pp={pp}"
        yield f"pretrain pp={pp}", ["trainer.pretrain", *tokens, str(made), *common, *short, layout], made
    base, tokenizer = str(out / "pretrain-1"), f"{data}/tokenizer"
    yield "export", ["trainer.export", base, tokenizer, str(out / "export"), "--log-level", "error"], out / "export"
    evaluated = ["trainer.evaluate", str(out / "export"), tokens[1], str(out / "evaluate"), *common]
    yield "evaluate", [*evaluated, "--texts", "1", "--new-tokens", "4"], out / "evaluate"
    tuned = ["trainer.finetune", "mrpc", str(out / "export"), f"{data}/glue_tokenize/mrpc", str(out / "finetune")]
    length = ["--epochs", "0", "--steps", str(steps), "--scored-train-rows", "0", "--global-batch-size", "8"]
    yield "finetune", [*tuned, *common, *length, "--parallel.pp=1"], out / "finetune"


def run(data: Path, interpreter: Path, determinism: str, steps: int, out: Path) -> Iterator[tuple[str, str, float]]:
    """Run all commands; yield name, the first digits of the digest of what was published, and seconds."""
    for name, arguments, made in commands(data, out, steps, determinism):
        started, size = time.monotonic(), 2 if "pp=2" in name else 1
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        ranks: list[subprocess.Popen[bytes]] = []
        for number in range(size):
            environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
            environment |= VARIABLES if determinism == "portable" else {}
            environment |= {"RANK": str(number), "LOCAL_RANK": str(number), "GLOO_SOCKET_IFNAME": "lo"}
            environment |= {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)}
            environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            ranks.append(subprocess.Popen([str(interpreter), "-m", *arguments], env=environment, cwd=ROOT))
        if any([rank.wait() for rank in ranks]):  # noqa: C419 (each is waited for)
            raise SystemExit(f"{determinism}, {interpreter}: {name} failed: see above")
        yield name, store.sha256(made / MANIFEST)[:12], time.monotonic() - started


MODELS = {"the sample's model": (4, 4, 128, 2048, 16, 128), "GPT-2 (124 M)": (12, 12, 768, 50257, 1, 256)}
"""Layers, heads, width, vocabulary, batch and length."""


def step_seconds(name: str, rounds: int = 4) -> float:
    """Return the fewest CPU seconds of a forward and backward pass in this process, of some rounds."""
    import torch

    from trainer.model import Architecture, LanguageModel

    torch.set_num_threads(1)
    n_layer, n_head, n_embd, vocab_size, batch, length = MODELS[name]
    shape = Architecture(n_layer=n_layer, n_head=n_head, n_embd=n_embd, n_positions=length, vocab_size=vocab_size)
    model, taken = LanguageModel(shape), [float("inf")]
    ids = torch.arange(batch * (length + 1)).reshape(batch, -1) % vocab_size
    for _ in range(rounds):
        started = time.process_time()
        logits = model(ids[:, :-1]).flatten(0, 1)
        torch.nn.functional.cross_entropy(logits, ids[:, 1:].flatten()).backward()
        taken.append(time.process_time() - started)
    return min(taken)


def show_costs() -> None:
    """Measure a step of each model in processes with and without the variables of `portable`, and print a table."""
    print("| CPU seconds of a step, one core | exact | portable | ratio |\n| --- | --- | --- | --- |")
    for name in MODELS:
        seconds: list[float] = []
        for variables in ({}, VARIABLES):
            call = f"from benchmarks.processors import step_seconds; print(step_seconds({name!r}))"
            environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
            found = [
                subprocess.run([sys.executable, "-c", call], env=environment, capture_output=True, check=True).stdout
                for _ in range(2)
            ]
            seconds.append(min(map(float, found)))
        print(f"| {name} | {seconds[0]:.2f} | {seconds[1]:.2f} | {seconds[1] / seconds[0]:.1f} |", flush=True)


def main() -> None:
    """Print a row for each run as it ends, and whether all agree."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data/sample"))
    parser.add_argument("--processors", nargs="+", default=["native", "EPYC", "Skylake-Client", "Haswell", "Nehalem"])
    parser.add_argument("--determinism", nargs="+", default=["portable", "auto"], choices=["portable", "exact", "auto"])
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--cost", action="store_true", help="measure the time of a step instead")
    options = parser.parse_args()
    if options.cost:
        show_costs()
        return
    print("| determinism | processor | command | seconds | manifest |\n| --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        interpreters = {processor: python(processor, folder) for processor in options.processors}
        for determinism in options.determinism:
            digests: dict[str, set[str]] = {}
            for processor, interpreter in interpreters.items():
                out = folder / determinism / processor
                out.mkdir(parents=True)
                data = options.data.resolve()
                for command, digest, seconds in run(data, interpreter, determinism, options.steps, out):
                    digests.setdefault(command, set()).add(digest)
                    print(f"| {determinism} | {processor} | {command} | {seconds:.0f} | {digest} |", flush=True)
            differ = [command for command, found in digests.items() if len(found) > 1]
            print(f"\n{determinism}: {'differ: ' + ', '.join(differ) if differ else 'all the same'}\n", flush=True)


if __name__ == "__main__":
    main()
