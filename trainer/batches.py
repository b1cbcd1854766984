"""The batches of a pretraining; as a command, which documents were in the global batch of a step.

    python -m trainer.batches --step 1200 runs/gpt2/pretrain data/openwebtext/tokenize/train \
        --documents data/openwebtext/split/train

One line per document: sample, token shard, row, document id, tokens within the document, URL (with --documents).
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pipelines.errors import UserError
from pipelines.tokens import TokenMeta
from trainer.config import PretrainConfig
from trainer.loader.batch import TokenRows, token_rows
from trainer.loader.mixture import Mixture
from trainer.loader.order import Array, Ids
from trainer.loader.samples import Samples, open_samples
from trainer.loader.stream import TokenStream


class PretrainBatches:
    """Samples of one corpus, or of several by weight, shuffled anew in each epoch."""

    def __init__(
        self,
        corpora: Sequence[Samples],
        batch_size: int,
        seed: int,
        *,
        weights: Sequence[float] = (1.0,),
        document_mask: bool = False,
    ) -> None:
        self.corpora = corpora
        self.batch_size = batch_size
        self.mixture = Mixture([len(corpus) for corpus in corpora], weights, seed)
        self.document_mask = document_mask

    @classmethod
    def of(cls, config: PretrainConfig, folders: Sequence[Path], data: Sequence[str], index: Path) -> "PretrainBatches":
        """As a section says. `data`: the folders' digests; `index`: where the indexes of packed rows are kept."""
        corpora = [
            open_samples(TokenStream(folder), config, digest, index)
            for folder, digest in zip(folders, data, strict=True)
        ]
        weights = config.mixture_weights or (1.0,)
        return cls(corpora, config.global_batch_size, config.seed, weights=weights, document_mask=config.document_mask)

    @property
    def samples(self) -> int:
        """Samples of all corpora."""
        return sum(len(corpus) for corpus in self.corpora)

    @property
    def meta(self) -> TokenMeta:
        """What the shards say of their tokenizer: the same in all corpora."""
        return self.corpora[0].stream.meta

    def places(self, position: int) -> Ids:
        """Always a whole batch: an epoch may end inside it."""
        return np.arange(position, position + self.batch_size, dtype=np.int64)

    def collate(self, places: Ids) -> TokenRows:
        """Rows of T + 1 tokens, and where their pieces begin if that matters."""
        corpora, elements = self.mixture(places)
        if len(self.corpora) == 1:
            tokens, starts = self.corpora[0].rows(elements)
        else:
            parts = [(corpora == number, samples) for number, samples in enumerate(self.corpora)]
            found = [(here, *samples.rows(elements[here])) for here, samples in parts if here.any()]
            tokens = _merge(len(places), [(here, tokens) for here, tokens, _ in found])
            marks = [(here, starts) for here, _, starts in found if starts is not None]
            starts = _merge(len(places), marks) if marks else None
        crossing = self.corpora[0].crossing
        return token_rows(tokens, places, starts, masked=self.document_mask, crossing=crossing)

    def names(self, places: Ids) -> list[str]:
        """The documents in these samples, by their ids."""
        from trainer.loader.lineage import name_places

        return [f"document {each.doc_id.hex()}" for each in name_places(self, places)]

    def describe(self, places: Ids) -> list[str]:
        """The same with sample, shard, row and tokens, as the command of this module says it."""
        from trainer.loader.lineage import name_places

        return [str(each) for each in name_places(self, places)]

    def terms(self, places: Ids) -> int:
        """Targets in these samples."""
        corpora, elements = self.mixture(places)
        return sum(samples.terms(elements[corpora == number]) for number, samples in enumerate(self.corpora))

    def tokens(self, places: Ids) -> int:
        """Tokens predicted: padding is none."""
        return self.terms(places)


def _merge(rows: int, parts: Sequence[tuple[Array, Array]]) -> Array:
    """Rows of several corpora in the order of the batch."""
    whole = np.empty((rows, parts[0][1].shape[1]), parts[0][1].dtype)
    for here, values in parts:
        whole[here] = values
    return whole


def main(arguments: Sequence[str]) -> int:
    """The command; returns its exit status."""
    from trainer.loader.lineage import name_step

    parser = argparse.ArgumentParser(
        prog="python -m trainer.batches", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="what pretrain published, or one of its step-* folders")
    parser.add_argument("train", type=Path, help="the token folder it was trained on")
    parser.add_argument("--step", type=int, required=True, help="number of the step, from 1")
    parser.add_argument("--documents", type=Path, help="the documents that were tokenized, for their URLs")
    call = parser.parse_args(arguments)
    try:
        with tempfile.TemporaryDirectory(prefix="millrace-") as folder:
            for line in name_step(call.run, call.train, call.step, Path(folder), call.documents):
                print(line)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
