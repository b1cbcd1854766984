"""Makes a generation of the sample files that docs/reference/formats.md promises to open, with the code as it is.

    python -m tests.data.formats.make 0.1      # into tests/data/formats/0.1

Run it when a format gets something new, under the name of the release that will write it, and never again for a
generation that a release has written: the point is that later code reads what earlier code wrote. tests/test_formats.py
reads all generations and compares values with DOCUMENTS and the sample's own export.
"""

import argparse
import json
import shutil
import tempfile
from pathlib import Path

from pipelines.command import StageSpec
from pipelines.stage import run_command

HERE = Path(__file__).parent
DOCUMENTS = [
    {"url": "http://mill.test/gate", "text": "The miller opens the gate at dawn, and the wheel begins to turn. " * 3},
    {
        "url": "http://mill.test/umlaut",
        "text": "A naïve reader in the café writes Größe and 語料, and a smile \U0001f642 stays as it is. " * 3,
    },
    {"url": "http://mill.test/short", "text": "Too short."},
]
"""What is written; the last one is rejected."""
KEPT = 2
RULE, VALUE = "too_few_tokens", "3 pre-tokens"
"""Of the rejection."""
MODEL = ["--model.n-layer", "1", "--model.n-head", "2", "--model.n-embd", "8", "--model.n-positions", "16"]
TRAINING = [
    *("--steps", "2", "--warmup-steps", "1", "--global-batch-size", "2", "--sequence-length", "16"),
    *("--checkpoint-every", "2", "--validate-every", "0", "--lr", "1e-3", "--parallel.device", "cpu"),
]


def run(stage: str, *arguments: object) -> None:
    """Run a stage's command. Raises SystemExit if it fails."""
    if status := run_command(StageSpec.load(stage), [str(argument) for argument in arguments]):
        raise SystemExit(status)


def make(folder: Path) -> None:
    """Write one of each format below a folder."""
    with tempfile.TemporaryDirectory() as scratch:
        made, source = Path(scratch), Path(scratch) / "documents.jsonl"
        source.write_text("".join(json.dumps(document) + "\n" for document in DOCUMENTS))
        run("dataprep.clean", source, made / "clean", "--min-tokens", "20", "--workers", "1")
        run("dataprep.tokenizer", made / "clean", made / "tokenizer", "--vocab-size", "300")
        run("dataprep.tokenize", made / "clean", made / "tokenizer", made / "tokens", "--workers", "1")
        run("trainer.pretrain", made / "tokens", made / "tokens", made / "run", *MODEL, *TRAINING)
        run("trainer.export", made / "run", made / "tokenizer", made / "export")
        for name in ("clean", "tokenizer", "tokens", "run", "export"):
            shutil.copytree(made / name, folder / name, copy_function=shutil.copyfile)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("generation", help="the release that writes such files, 0.1 for example")
    make(HERE / parser.parse_args().generation)
