"""Stage `tokenizer`: the tokenizer of the corpus, as one Hugging Face `tokenizer.json`.

It is trained on the training documents (byte-level BPE), or taken from local files (any model's `tokenizer.json`, or
GPT-2's other layouts, `encoder.json` + `vocab.bpe` and `vocab.json` + `merges.txt`), or from a pinned revision on the
Hugging Face Hub (with HF_HUB_OFFLINE=1 only from the local cache).

    python -m dataprep.tokenizer train.jsonl tokenizer/ --vocab-size 8192
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge

from pipelines import store
from pipelines.command import Documents, Limit, Output, Part, StageSpec
from pipelines.config import TokenizerPath, given
from pipelines.documents import read_batches
from pipelines.errors import ConfigError
from pipelines.hub import check_commit, explained
from pipelines.manifest import Counts
from pipelines.run import StageRun
from pipelines.stage import stage_main

VERSION = 2
SHAPED_BY = ("tokenizers",)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerConfig:
    """Where the tokenizer comes from."""

    kind: Literal["train", "files", "hub"] = "train"
    """train: byte-level BPE on the documents; files: local files; hub: a pinned revision."""
    vocab_size: Annotated[int, Ge(257)] = 50_257
    """Entries of a trained vocabulary, including end-of-text; at least the 256 bytes and end-of-text."""
    files: TokenizerPath = ""
    """kind files: a tokenizer.json, or a folder with one, or with a vocabulary and its merges."""
    hub_id: str = "openai-community/gpt2"
    """kind hub: repository on the Hugging Face Hub."""
    hub_revision: str = "607a30d783dfa663caf39e06633721c8d4cfcd7e"
    """kind hub: the full commit, so that the bytes are pinned."""
    end_of_text: str = "<|endoftext|>"
    """Token that ends every document; if it is not the default, it is stored in tokenizer_config.json, as
    `eos_token`."""


def check_config(config: TokenizerConfig) -> None:
    """Raise ConfigError if the tokenizer's files are not named, or if a revision on the Hub could change."""
    if config.kind == "files" and given(config.files) is None:
        raise ConfigError("tokenizer.files: kind is 'files', so name a tokenizer file or folder here")
    if config.kind == "hub":
        check_commit("tokenizer.hub_revision", config.hub_id, config.hub_revision)


def tokenizer(config: TokenizerConfig, run: StageRun, documents: Documents, output: Output) -> dict[str, int]:
    """Train or fetch the tokenizer, in one step."""
    files = [file for part in documents.parts for file in part.files] if config.kind == "train" else []
    counts = run.step(make_tokenizer, "tokenizer", files, config, into=output)
    run.summary = f"vocabulary of {counts.totals['vocab_size']:,}"
    return {"vocab_size": counts.totals["vocab_size"]}


def make_tokenizer(part: Part, folder: Path, config: TokenizerConfig) -> Counts:
    """Write `tokenizer.json` into `folder`."""
    from dataprep.text.tokenizers import END_OF_TEXT, TOKENIZER_CONFIG, TOKENIZER_JSON, load_tokenizer

    counts = Counts()
    if config.kind == "train":
        tokenizer = train_bpe(part.files, config.vocab_size, config.end_of_text, counts)
    elif config.kind == "files":
        tokenizer = load_tokenizer(Path(config.files), config.end_of_text)
    else:
        tokenizer = load_tokenizer(fetch_from_hub(config.hub_id, config.hub_revision), config.end_of_text)
    with store.create(folder / TOKENIZER_JSON) as file:
        file.write(tokenizer.to_str(pretty=True).encode())
    if config.end_of_text != END_OF_TEXT:
        store.write_json(folder / TOKENIZER_CONFIG, {"eos_token": config.end_of_text})
    counts.total("vocab_size", tokenizer.get_vocab_size())
    return counts


def train_bpe(files: tuple[Path, ...], vocab_size: int, end_of_text: str, counts: Counts):
    """Train byte-level BPE on the texts of document shards; end-of-text is the last id, as in GPT-2.

    The vocabulary depends neither on the number of threads nor on the order of the documents: word counts are sums,
    and ties between pairs are broken by their ids (tested). Memory grows with the distinct words of the corpus, not
    its size: about 200 bytes for each word and its count.
    """
    from tokenizers import AddedToken
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel
    from tokenizers.trainers import BpeTrainer

    from dataprep.text.tokenizers import byte_level

    bpe = byte_level(BPE())
    trainer = BpeTrainer(vocab_size=vocab_size - 1, initial_alphabet=sorted(ByteLevel.alphabet()), show_progress=False)
    bpe.train_from_iterator(_texts(files, counts), trainer)
    bpe.add_special_tokens([AddedToken(end_of_text, special=True, normalized=False)])
    return bpe


def _texts(files: tuple[Path, ...], counts: Counts) -> Iterator[list[str]]:
    for file in files:
        for batch in read_batches(file, ["text"]):
            texts = batch.column("text").to_pylist()
            counts.rows_in += len(texts)
            yield texts


def fetch_from_hub(hub_id: str, revision: str) -> Path:
    """Download a repository's tokenizer files at `revision` and return their folder in the local cache."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    with explained(
        f"{hub_id} at {revision[:12]}",
        "check the network and the name, unset HF_HUB_OFFLINE, or use local files (kind files)",
    ):
        return Path(
            snapshot_download(hub_id, revision=revision, allow_patterns=["tokenizer.json", "vocab.json", "merges.txt"])
        )


STAGE = StageSpec.of(tokenizer, VERSION, SHAPED_BY, limit=Limit("documents"), check_config=check_config)

if __name__ == "__main__":
    stage_main("dataprep.tokenizer")
