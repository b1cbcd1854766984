"""The rivals of `benchmarks.dedup`, each a whole process from JSONL to JSONL, without anything of ours.

    python benchmarks/dedup_rivals.py datasketch CORPUS.jsonl KEPT.jsonl
    python benchmarks/dedup_rivals.py rensa CORPUS.jsonl KEPT.jsonl
    python benchmarks/dedup_rivals.py text_dedup CORPUS.jsonl KEPT.jsonl PROCESSES
    python benchmarks/dedup_rivals.py datatrove FOLDER_OF_TASKS KEPT_FOLDER WORKERS
    python benchmarks/dedup_rivals.py sign_datasketch|sign_rensa CORPUS.jsonl

Word 5-grams of the lower-cased text, 128 permutations, threshold 0.7. datasketch, rensa and text-dedup get them by
these names; datatrove has words (spaCy's) and numbers (14 bands of 8) of its own and no threshold beside its bands.
rensa ships no splitter of words, so it gets the fastest one in plain Python that we know, and datasketch the same.
`sign_...` prints seconds and CPU seconds from texts in memory to signatures.
"""

import json
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

THRESHOLD, NUM_PERM, BANDS = 0.7, 128, 16
"""16 bands of 8 rows are rensa's; datasketch and text-dedup choose theirs from the threshold."""
BATCH = 1000
WORD = re.compile(r"\w+")
ASCII_WORDS = bytes(byte if chr(byte).isalnum() or byte == ord("_") else ord(" ") for byte in range(128)) + bytes(128)


def shingles(text: str) -> list[bytes]:
    """Runs of five words, with repetitions, which change no minimum; a shorter text is one run.

    An ASCII text is split by `bytes.translate`, with the result of the regular expression in a third of its time.
    """
    text = text.lower()
    words = text.encode().translate(ASCII_WORDS).split() if text.isascii() else [w.encode() for w in WORD.findall(text)]
    if len(words) < 5:
        return [b" ".join(words)]
    return list(map(b" ".join, zip(words, words[1:], words[2:], words[3:], words[4:], strict=False)))


def batches(corpus: Path) -> Iterator[tuple[list[bytes], list[str]]]:
    """Lines of the corpus and their texts, a thousand at a time."""
    import orjson

    lines: list[bytes] = []
    with corpus.open("rb") as file:
        for line in file:
            lines.append(line)
            if len(lines) == BATCH:
                yield lines, [orjson.loads(each)["text"] for each in lines]
                lines = []
    if lines:
        yield lines, [orjson.loads(each)["text"] for each in lines]


def datasketch_signatures(texts: list[str]) -> list[Any]:
    """Its fast way for many documents."""
    from datasketch import MinHash

    return MinHash.bulk([shingles(text) for text in texts], num_perm=NUM_PERM)


def rensa_signatures(texts: list[str]) -> list[Any]:
    """Its full digest, as objects: the matrix has no estimate of the similarity of two rows."""
    from rensa import RMinHash

    return RMinHash.from_token_sets([shingles(text) for text in texts], NUM_PERM, 42)


def datasketch(corpus: Path, kept: Path) -> None:
    """Query or insert, nothing verified: the first document of a bucket stays."""
    from datasketch import MinHashLSH

    lsh = MinHashLSH(threshold=THRESHOLD, num_perm=NUM_PERM)
    number = 0
    with kept.open("wb") as out:
        for lines, texts in batches(corpus):
            for line, signature in zip(lines, datasketch_signatures(texts), strict=True):
                if not lsh.query(signature):
                    lsh.insert(number, signature)
                    out.write(line)
                    number += 1


def rensa(corpus: Path, kept: Path) -> None:
    """Query or insert, with the estimated similarity verified: the first document of those alike stays."""
    from rensa import RMinHashLSH

    lsh = RMinHashLSH(THRESHOLD, NUM_PERM, BANDS)
    stay: list[Any] = []
    with kept.open("wb") as out:
        for lines, texts in batches(corpus):
            for line, signature in zip(lines, rensa_signatures(texts), strict=True):
                if not any(signature.jaccard(stay[other]) >= THRESHOLD for other in lsh.query(signature)):
                    lsh.insert(len(stay), signature)
                    stay.append(signature)
                    out.write(line)


def text_dedup(corpus: Path, kept: Path, processes: str) -> None:
    """Its `minhash` with the check of false positives; what it saves as a dataset is then written as JSONL."""
    import os

    with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
        os.environ |= {"HF_HOME": folder, "HF_DATASETS_CACHE": f"{folder}/cache", "HF_HUB_OFFLINE": "1"}
        from datasets import disable_progress_bars, load_from_disk
        from text_dedup.config.base import load_config_from_toml
        from text_dedup.minhash import main

        disable_progress_bars()
        settings = Path(folder) / "config.toml"
        settings.write_text(
            f"""
            [input]
            input_type = "local_files"
            file_type = "json"
            [input.read_arguments]
            path = "json"
            data_files = "{corpus}"
            split = "train"
            [algorithm]
            algorithm_name = "minhash"
            text_column = "text"
            num_perm = {NUM_PERM}
            threshold = {THRESHOLD}
            ngram_size = 5
            check_false_positive = true
            num_proc = {processes}
            [output]
            output_dir = "{folder}/out"
            [debug]
            enable_profiling = false
            """
        )
        main(load_config_from_toml(settings))
        load_from_disk(f"{folder}/out").to_json(str(kept), num_proc=None)


def datatrove(tasks: Path, kept: Path, workers: str) -> None:
    """Its four stages in its local executor, a task for each file of the folder; nothing verified."""
    from datatrove.executor.local import LocalPipelineExecutor
    from datatrove.pipeline.dedup import minhash
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.writers.jsonl import JsonlWriter

    config, files = minhash.MinhashConfig(n_grams=5), len(list(tasks.iterdir()))
    with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
        work = Path(folder)

        def reader() -> JsonlReader:
            return JsonlReader(str(tasks), id_key="url")

        signatures, buckets, removed = (str(work / name) for name in ("signatures", "buckets", "removed"))
        stages = [
            ([reader(), minhash.MinhashDedupSignature(signatures, config=config)], files),
            ([minhash.MinhashDedupBuckets(signatures, buckets, config=config)], config.num_buckets),
            ([minhash.MinhashDedupCluster(buckets, removed, config=config)], 1),
            (
                [
                    reader(),
                    minhash.MinhashDedupFilter(removed),
                    JsonlWriter(str(kept), output_filename="${rank}.jsonl", compression=None),
                ],
                files,
            ),
        ]
        for number, (steps, count) in enumerate(stages):
            LocalPipelineExecutor(
                steps, tasks=count, workers=int(workers), logging_dir=str(work / f"log-{number}"), start_method="fork"
            ).run()


def _sign(signatures: Callable[[list[str]], list[Any]], corpus: Path) -> None:
    pieces = [texts for _, texts in batches(corpus)]
    signatures(pieces[0][:10])  # imports
    wall, cpu = time.perf_counter(), time.process_time()
    made = [signatures(texts) for texts in pieces]
    took = {"seconds": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
    print(json.dumps({**took, "documents": sum(map(len, made))}))


def sign_datasketch(corpus: Path) -> None:
    """Shingles and signatures alone."""
    _sign(datasketch_signatures, corpus)


def sign_rensa(corpus: Path) -> None:
    """Shingles and signatures alone."""
    _sign(rensa_signatures, corpus)


if __name__ == "__main__":
    tool, *paths = sys.argv[1:]
    globals()[tool](*map(Path, paths[:2]), *paths[2:])
