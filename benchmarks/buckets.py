"""What a bucket costs: stages from and to a server of S3 on loopback, beside the same stages on local files.

    python -m benchmarks.buckets TEXTS.jsonl WORK [--documents-per-shard 30000] [--workers 1]

Whole commands. The server (moto, in a process of its own, all in memory) is no fast one, and on few cores it takes from
the stage: only CPU seconds of the stage's own processes are a property of ours. `put` and `get` are the client alone.
"""

import argparse
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from pipelines import buckets, store
from pipelines.manifest import MANIFEST, Manifest

BUCKET = "mill"
SERVER = """\
import sys
from tests.s3_server import serve_s3
with serve_s3() as server:
    print(server.endpoint, flush=True)
    sys.stdin.read()
"""
STAGES = {"clean": ("--min-tokens", "16"), "shuffle": ("--documents-per-shard", "SIZE")}


def timed(work: Callable[[], object], who: int) -> tuple[float, float]:
    """Return seconds and CPU seconds of this process or of the commands that it runs."""
    before, began = resource.getrusage(who), time.monotonic()
    work()
    seconds, after = time.monotonic() - began, resource.getrusage(who)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def run(words: Sequence[str], work: Path) -> None:
    """Run a stage; an error ends the benchmark."""
    subprocess.run([sys.executable, "-m", *words], cwd=work, check=True, stderr=subprocess.DEVNULL)


def transfer(folder: Path) -> None:
    """Print what the client alone takes to send the files of a folder, and to fetch them."""
    source, manifest = buckets.bucket(BUCKET), Manifest.load(folder / MANIFEST)

    def put() -> None:
        for name, entry in manifest.files.items():
            source.upload(folder / name, f"transfer/{name}", entry.bytes, entry.sha256)

    def get() -> None:
        for each in source.list("transfer"):
            source.download(each, folder.with_name("fetched") / each.key)

    for name, work in (("put", put), ("get", get)):
        seconds, cpu = timed(work, resource.RUSAGE_SELF)
        megabytes = manifest.bytes / 1e6
        print(
            f"| {name} | {megabytes:.0f} MB | {megabytes / seconds:.0f} MB/s | "
            f"{megabytes / cpu:.0f} MB per CPU second |"
        )


def main() -> None:
    """Print two tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--documents-per-shard", type=int, default=30_000)
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    work, size = options.work.absolute(), str(options.documents_per_shard)
    work.mkdir(parents=True, exist_ok=True)
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdout
    os.environ |= {
        "PYTHONPATH": str(Path.cwd()),
        "AWS_ENDPOINT_URL": server.stdout.readline().strip(),
        "AWS_ACCESS_KEY_ID": "mill",
        "AWS_SECRET_ACCESS_KEY": "mill",
    }
    how = ("--workers", str(options.workers), "--overwrite")
    far = f"s3://{BUCKET}/far"
    try:
        for target in ("corpus", far):
            run(["dataprep.shuffle", str(options.texts.absolute()), target, "--documents-per-shard", size, *how], work)
        transfer(work / "corpus")
        print("| stage | from and to | seconds | CPU seconds |\n| --- | --- | --- | --- |")
        for stage, more in STAGES.items():
            for source, target in (("corpus", f"near-{stage}"), (far, f"s3://{BUCKET}/{stage}")):
                store.remove(work / ".scratch")
                words = [
                    f"dataprep.{stage}",
                    source,
                    target,
                    *(size if word == "SIZE" else word for word in more),
                    *how,
                ]
                seconds, cpu = timed(lambda words=words: run(words, work), resource.RUSAGE_CHILDREN)
                print(f"| {stage} | {source} | {seconds:.1f} | {cpu:.1f} |", flush=True)
    finally:
        server.communicate()
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
