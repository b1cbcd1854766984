"""The rivals of `benchmarks.cleaning`, each a whole process from JSONL to JSONL, without anything of ours.

    python benchmarks/cleaning_rivals.py seeds CORPUS.jsonl KEPT.jsonl GPT2_FOLDER
    python benchmarks/cleaning_rivals.py datatrove CORPUS.jsonl FOLDER

`seeds` does what Megatron-LM's cleanup_dataset.py did, with what is at hand for Python 3.11; the reasons go to
KEPT.rejected.jsonl. `datatrove` writes the kept documents to FOLDER/kept/, those of a filter to FOLDER/<filter>/.
"""

import json
import sys
from pathlib import Path

MIN_TOKENS = 128
TOKENIZED_BELOW = 8 * MIN_TOKENS
"""Characters; a longer text is taken to be long enough."""


def seeds(corpus: Path, kept: Path, gpt2: Path) -> None:
    """Ftfy, langdetect on the whole text, and GPT-2's tokens (end-of-text is one of them) of a short one.

    Two things differ from the seeds': the tokenizer is HF's (theirs was pure Python and slower), and langdetect is
    seeded, so that its verdicts can be compared.
    """
    import ftfy
    import langdetect
    from tokenizers import ByteLevelBPETokenizer

    langdetect.DetectorFactory.seed = 0
    tokenizer = ByteLevelBPETokenizer(str(gpt2 / "encoder.json"), str(gpt2 / "vocab.bpe"))

    def reason(text: str) -> str:
        try:
            if langdetect.detect(text) != "en":
                return "language"
        except langdetect.LangDetectException:
            return "exception"
        short = len(text) < TOKENIZED_BELOW and len(tokenizer.encode(text).ids) + 1 < MIN_TOKENS
        return "too_few_tokens" if short else ""

    with corpus.open() as lines, kept.open("w") as out, kept.with_suffix(".rejected.jsonl").open("w") as rejected:
        for line in lines:
            document = json.loads(line)
            document["text"] = ftfy.fix_text(document["text"])
            if rule := reason(document["text"]):
                rejected.write(json.dumps({"url": document["url"], "rule": rule}) + "\n")
            else:
                out.write(json.dumps(document, ensure_ascii=False) + "\n")


def datatrove(corpus: Path, folder: Path) -> None:
    """Its formatter and quality filters with their defaults, in its local executor with one worker."""
    from datatrove.executor.local import LocalPipelineExecutor
    from datatrove.pipeline.filters import FineWebQualityFilter, GopherQualityFilter, GopherRepetitionFilter
    from datatrove.pipeline.formatters import FTFYFormatter
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.writers.jsonl import JsonlWriter

    def writer(name: str) -> JsonlWriter:
        return JsonlWriter(str(folder / name), output_filename="${rank}.jsonl", compression=None)

    steps = [
        JsonlReader(str(corpus.parent), glob_pattern=corpus.name, id_key="url"),
        FTFYFormatter(),
        GopherQualityFilter(exclusion_writer=writer("gopher_quality")),
        GopherRepetitionFilter(exclusion_writer=writer("gopher_repetition")),
        FineWebQualityFilter(exclusion_writer=writer("fineweb_quality")),
        writer("kept"),
    ]
    LocalPipelineExecutor(steps, tasks=1, workers=1, logging_dir=str(folder / "log")).run()


if __name__ == "__main__":
    {"seeds": seeds, "datatrove": datatrove}[sys.argv[1]](*map(Path, sys.argv[2:]))
