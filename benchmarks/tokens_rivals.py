"""Others' ways from a JSONL file to token ids on disk, end-of-text after each document: one command for each.

    python tokens_rivals.py nanogpt|tiktoken|huggingface|megatron CORPUS.jsonl TOKENIZER_FOLDER OUTPUT_FOLDER

Steps and settings follow nanoGPT's data/openwebtext/prepare.py (datasets.map, 1,024 shards into a memmap) and
Megatron-LM's tools/preprocess_data.py (a pool, one call for each line, .bin and .idx). TOKENIZER_FOLDER holds
GPT-2's encoder.json and vocab.bpe. Runs in an environment of its own, without this project.
"""

import json
import multiprocessing
import os
import struct
import sys
from pathlib import Path

import numpy as np

PROCESSES = 2
END = 50_256
_BATCH = 1000
_state = {}


def nanogpt(corpus: Path, tokenizer: Path, output: Path) -> None:
    """Each document by tiktoken in datasets.map, then a memmap filled in 1,024 pieces."""
    from datasets import load_dataset
    from tqdm import tqdm

    encoding = tiktoken_gpt2(tokenizer)

    def process(example: dict[str, str]) -> dict[str, object]:
        ids = encoding.encode_ordinary(example["text"])
        ids.append(encoding.eot_token)
        return {"ids": ids, "len": len(ids)}

    data = load_dataset("json", data_files=str(corpus), split="train", cache_dir=str(output / "cache"))
    tokenized = data.map(process, remove_columns=data.column_names, num_proc=PROCESSES)
    length = int(np.sum(tokenized["len"], dtype=np.uint64))
    array = np.memmap(output / "train.bin", dtype=np.uint16, mode="w+", shape=(length,))
    place = 0
    for number in tqdm(range(1024)):
        rows = tokenized.shard(num_shards=1024, index=number, contiguous=True).with_format("numpy")
        if len(rows):
            batch = np.concatenate(rows["ids"])
            array[place : place + len(batch)] = batch
            place += len(batch)
    array.flush()


def tiktoken(corpus: Path, tokenizer: Path, output: Path) -> None:
    """`encode_ordinary_batch` of 1,000 documents on two threads."""
    encoding = tiktoken_gpt2(tokenizer)
    with (output / "train.bin").open("wb") as file:
        for texts in batches(corpus):
            for ids in encoding.encode_ordinary_batch(texts, num_threads=PROCESSES):
                ids.append(END)
                file.write(np.array(ids, np.uint16).tobytes())


def huggingface(corpus: Path, tokenizer: Path, output: Path) -> None:
    """`encode_batch` of 1,000 documents on two threads."""
    os.environ |= {"RAYON_NUM_THREADS": str(PROCESSES), "TOKENIZERS_PARALLELISM": "true"}
    encoder = huggingface_gpt2(tokenizer)
    with (output / "train.bin").open("wb") as file:
        for texts in batches(corpus):
            for encoding in encoder.encode_batch(texts):
                file.write(np.array([*encoding.ids, END], np.uint16).tobytes())


def megatron(corpus: Path, tokenizer: Path, output: Path) -> None:
    """A pool that gets lines and gives lists of ids; .bin with the ids, .idx with lengths, places and documents."""
    lengths: list[int] = []
    with (
        multiprocessing.Pool(PROCESSES, initializer=_megatron_start, initargs=(tokenizer,)) as pool,
        corpus.open(encoding="utf-8") as lines,
        (output / "train.bin").open("wb") as file,
    ):
        for ids in pool.imap(_megatron_line, lines, 32):
            file.write(np.array(ids, np.uint16).tobytes())
            lengths.append(len(ids))
    with (output / "train.idx").open("wb") as index:
        index.write(b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 8, len(lengths), len(lengths) + 1))
        index.write(np.array(lengths, np.int32).tobytes())
        index.write(np.concatenate([[0], np.cumsum(lengths[:-1]) * 2]).astype(np.int64).tobytes())
        index.write(np.arange(len(lengths) + 1, dtype=np.int64).tobytes())


def _megatron_start(tokenizer: Path) -> None:
    _state["encoder"] = huggingface_gpt2(tokenizer)


def _megatron_line(line: str) -> list[int]:
    return [*_state["encoder"].encode(json.loads(line)["text"]).ids, END]


def batches(corpus: Path):
    """Texts, a thousand at a time."""
    texts: list[str] = []
    with corpus.open(encoding="utf-8") as lines:
        for line in lines:
            texts.append(json.loads(line)["text"])
            if len(texts) == _BATCH:
                yield texts
                texts = []
    if texts:
        yield texts


def tiktoken_gpt2(folder: Path):
    """Tiktoken's "gpt2", from local files: its ranks are the ids of encoder.json."""
    import tiktoken
    from tiktoken.load import data_gym_to_mergeable_bpe_ranks

    os.environ["TIKTOKEN_CACHE_DIR"] = ""
    ranks = data_gym_to_mergeable_bpe_ranks(str(folder / "vocab.bpe"), str(folder / "encoder.json"))
    pattern = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
    return tiktoken.Encoding(
        "gpt2", pat_str=pattern, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": END}, explicit_n_vocab=50_257
    )


def huggingface_gpt2(folder: Path):
    """The byte-level BPE of `tokenizers`, from the same files."""
    from tokenizers import ByteLevelBPETokenizer

    return ByteLevelBPETokenizer(str(folder / "encoder.json"), str(folder / "vocab.bpe"))


if __name__ == "__main__":
    way, corpus, tokenizer, output = sys.argv[1], *map(Path, sys.argv[2:])
    output.mkdir(parents=True)
    {"nanogpt": nanogpt, "tiktoken": tiktoken, "huggingface": huggingface, "megatron": megatron}[way](
        corpus, tokenizer, output
    )
