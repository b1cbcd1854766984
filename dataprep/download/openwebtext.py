"""The command line of OpenWebText's download.py, in the form of ColossalAI's recipe, run on two stages.

    python -m dataprep.download clean_urls.txt --n_procs 50 --output raw.json

`download` fetches the pages of the list into raw.pages beside the output, and `extract` writes their texts to raw.json,
one JSON object per line with `text` and `url`. A killed run goes on with the same command. Other flags are those of
`download`.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from dataprep.programs import note, run_program, run_stage, scratch_beside
from pipelines import store
from pipelines.documents import is_jsonl
from pipelines.errors import ConfigError, UserError
from pipelines.manifest import MANIFEST, manifest_path
from pipelines.utf import text_lines

_NO_EFFECT = {
    "scraper": "texts are always extracted by the stage extract",
    "save_uncompressed": "pages are always kept, in WARC segments",
    "chunk_size": "every page is kept as soon as it is there",
    "compress": "segments are always compressed",
    "compress_fmt": "segments are gzip, as WARC readers expect",
    "scraper_memoize": "pages that are there are never fetched again",
    "show_warnings": "--log-level says what is reported",
    "sqlite_meta": "--fetch-log writes a row for every URL",
}
"""Options of download.py that change nothing here -> why."""
_OURS = ("--output", "--output_dir", "--n_procs", "--timeout", "--max_urls", *(f"--{name}" for name in _NO_EFFECT))


def download_texts(arguments: Sequence[str]) -> int | None:
    """Run the command line of download.py. Return the exit status, None if the arguments are others."""
    if not any(argument.partition("=")[0] in _OURS for argument in arguments):
        return None
    return run_program("download", _download, arguments)


def _download(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> int:
    parser.add_argument("url_file", type=Path)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--output_dir", type=Path)
    parser.add_argument("--n_procs", type=int, default=10)
    parser.add_argument("--timeout", type=int, default=-1)
    parser.add_argument("--max_urls", type=int, default=-1)
    for name in ("save_uncompressed", "compress", "scraper_memoize", "show_warnings", "sqlite_meta"):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--chunk_size", type=int)
    parser.add_argument("--scraper", choices=("raw", "bs4", "newspaper"))
    parser.add_argument("--compress_fmt", choices=("xz", "bz2", "gz"))
    options, flags = parser.parse_known_args(arguments)
    if options.output is None or options.output_dir is not None or not is_jsonl(options.output):
        raise ConfigError("download: one JSON file is written, not a folder of texts; give --output FILE.json")
    for name, why in _NO_EFFECT.items():
        if getattr(options, name):
            note(f"--{name}: {why}")
    output = store.real_path(options.output)
    if output.exists() and not (options.overwrite and manifest_path(output).exists()):
        raise UserError(f"{options.output}: exists already; choose another output, or replace it with --overwrite")
    pages = output.with_name(f"{output.name.partition('.')[0]}.pages")
    flags += ["--concurrency", options.n_procs]
    if options.timeout > 0:
        flags += ["--total-seconds", options.timeout]
    again = argparse.Namespace(**{**vars(options), "overwrite": (pages / MANIFEST).exists()})
    with scratch_beside(output, {}, options) as scratch:
        urls = options.url_file
        if options.max_urls >= 0:
            urls = _first_urls(urls, options.max_urls, scratch / "urls.txt")
        if status := run_stage("download", again, urls, pages, *flags):
            return status
    return run_stage("extract", options, pages, output)


def _first_urls(source: Path, number: int, target: Path) -> Path:
    """Write the first lines of a list to `target`, and return it."""
    with store.create(target) as file:
        for _, line in zip(range(number), text_lines(source), strict=False):
            file.write(line.rstrip(b"\r\n") + b"\n")
    return target
