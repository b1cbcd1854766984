"""The deduplication's kernels on one core: documents and megabytes of text per CPU second, step by step.

    python -m benchmarks.kernel CORPUS.jsonl [--shingle word:5] [--num-perm 128] [--rounds 5]

Text as in Arrow's buffers, in the pieces that the stage works on; reading and parsing do not count. Rounds are
interleaved, the best one of each counts, and all kernels must give the same bytes.
"""

import argparse
import hashlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json as pj

from dataprep.dedup.minhash import Permutations, sign_texts
from dataprep.dedup.shingle_sets import count_shared
from dataprep.dedup.shingles import Shingle, Shingles, distinct_shingles, find_shingles
from dataprep.native import kernel as choice
from dataprep.text.folding import Texts, fold_texts, raw_texts, text_hashes, text_pieces

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Work:
    """What is signed, and the intermediate results that single steps start from."""

    raw: list[Texts]
    folded: list[Texts]
    sets: Shingles
    pairs: Array
    """(num_pairs, 2): each document with the next one, which is a pair of about the same sizes as any other."""
    shingle: Shingle
    permutations: Permutations


def prepare(corpus: Path, shingle: Shingle, num_perm: int) -> Work:
    """Read the texts of a JSONL file."""
    column = pj.read_json(str(corpus), pj.ReadOptions(block_size=1 << 26)).column("text")
    texts = pa.concat_arrays(column.cast(pa.large_string()).chunks)
    raw = [raw_texts(piece) for _, piece in text_pieces(texts)]
    folded = [fold_texts(piece) for piece in raw]
    sets = distinct_shingles(fold_texts(raw_texts(texts)), shingle)
    numbers = np.arange(len(texts))
    pairs = np.stack((numbers, np.roll(numbers, 1)), axis=1)
    return Work(raw, folded, sets, pairs, shingle, Permutations.draw(num_perm, 1))


def count_pairs(work: Work) -> Array:
    """Shared shingles of each pair, as ShingleSets counts them."""
    starts, stops = work.sets.first[:-1], work.sets.first[1:]
    if native := choice.kernel():
        a, b = ((np.zeros_like(side), starts[side], stops[side]) for side in work.pairs.T)
        return native.shared((work.sets.hashes,), a, b)
    return np.array([count_shared(work.sets.of(a), work.sets.of(b)) for a, b in work.pairs.tolist()])


STEPS: dict[str, Callable[[Work], list[Any]]] = {
    "fold": lambda work: [fold_texts(texts) for texts in work.raw],
    "hash of the folded text (xxh3)": lambda work: [text_hashes(texts) for texts in work.folded],
    "folded text to shingles": lambda work: [find_shingles(texts, work.shingle).hashes for texts in work.folded],
    "folded text to sets": lambda work: [distinct_shingles(texts, work.shingle).hashes for texts in work.folded],
    "folded text to signatures": lambda work: [
        sign_texts(texts, work.shingle, work.permutations) for texts in work.folded
    ],
    "raw text to signatures": lambda work: [
        sign_texts(fold_texts(texts), work.shingle, work.permutations) for texts in work.raw
    ],
    "sizes of intersections": lambda work: [count_pairs(work)],
}


def digest(results: list[Any]) -> str:
    """Of all bytes of a step's results."""
    found = hashlib.sha256()
    for result in results:
        if isinstance(result, Texts):
            for number in range(len(result)):
                found.update(result.encoded(number) + b"\n")
        else:
            found.update(b"".join(result) if isinstance(result, list) else np.ascontiguousarray(result).tobytes())
    return found.hexdigest()


def use(name: str) -> None:
    """Compute with this kernel from now on."""
    os.environ[choice.VARIABLE] = name
    choice.kernel.cache_clear()
    choice.kernel()


def kernels() -> list[str]:
    """NumPy and all compilations that run here."""
    os.environ.pop(choice.VARIABLE, None)
    choice.kernel.cache_clear()
    native = choice.kernel()
    return ["numpy", *(native.module.names() if native else ())]


def main() -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--shingle", default="word:5")
    parser.add_argument("--num-perm", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    names = kernels()
    work = prepare(arguments.corpus, Shingle.parse(arguments.shingle), arguments.num_perm)
    documents, megabytes = len(work.pairs), sum(len(texts.data) for texts in work.raw) / 1e6
    seconds: dict[tuple[str, str], float] = {}
    digests: dict[str, set[str]] = {step: set() for step in STEPS}
    for turn in range(arguments.rounds):
        for name in names[1 if turn > 1 else 0 :]:  # two rounds of NumPy are enough
            use(name)
            for step, function in STEPS.items():
                started = time.process_time()
                results = function(work)
                taken = time.process_time() - started
                seconds[step, name] = min(taken, seconds.get((step, name), taken))
                if turn == 0:
                    digests[step].add(digest(results))
    unequal = [step for step, found in digests.items() if len(found) > 1]
    if unequal:
        raise SystemExit(f"kernels differ: {', '.join(unequal)}")
    print(f"{documents:,} documents, {megabytes:.1f} MB, {len(work.sets.hashes) / documents:.0f} shingles a document\n")
    print(f"| documents/s (MB/s), one core | {' | '.join(names)} |\n| --- |{' --- |' * len(names)}")
    for step in STEPS:
        cells = [f"{documents / seconds[step, n]:,.0f} ({megabytes / seconds[step, n]:,.0f})" for n in names]
        print(f"| {step} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
