"""Publishes what a stage made: whole outputs swapped in, manifests, stats and provenance."""

import logging
import platform
import re
from pathlib import Path
from typing import Any

from pipelines import documents as formats
from pipelines import store
from pipelines.command import Invocation, Output
from pipelines.manifest import MANIFEST, FileEntry, Manifest, manifest_path
from pipelines.run import StageRun

logger = logging.getLogger(__name__)


def publish(output: Output, staged: Path, previous: Path) -> None:
    """Make the output whole beside its place (hard links, manifest), then swap it in.

    The scratch keeps its own links until the very end, so a crash here costs nothing.
    """
    store.remove(staged)
    manifest = Manifest(dict(sorted(output.files.items())), output.counts)
    if formats.is_jsonl(output.final):
        _publish_jsonl(output, manifest)
        return
    staged.mkdir(parents=True)
    for name in manifest.files:
        store.link_or_copy(output.folder / name, staged / name)
    manifest.save(staged / MANIFEST)
    for folder in [staged, *(path for path in staged.rglob("*") if path.is_dir())]:
        store.sync_folder(folder)
    store.publish(staged, output.final, previous)


def _publish_jsonl(output: Output, manifest: Manifest) -> None:
    """The output as one JSONL file; rejected rows, if any, as a second one beside it."""
    names = sorted(manifest.files)
    base = re.sub(r"\.(jsonl|json|ndjson)(\.\w+)?$", "", output.final.name)
    targets = {output.final: [output.folder / name for name in names if "/" not in name]}
    rejected = [output.folder / name for name in names if name.startswith(f"{formats.REJECTED}/")]
    if rejected:
        targets[output.final.with_name(output.final.name.replace(base, f"{base}.rejected", 1))] = rejected
    entries: dict[str, FileEntry] = {}
    for target, parts in targets.items():
        formats.write_jsonl(parts, target)
        rows = sum(manifest.files[part.relative_to(output.folder).as_posix()].rows or 0 for part in parts)
        entries[target.name] = FileEntry(rows, target.stat().st_size, store.sha256(target))
    Manifest(entries, manifest.counts).save(manifest_path(output.final))


def report(call: Invocation, run: StageRun, identity: dict[str, Any], seconds: float) -> None:
    """Stats (deterministic) and provenance (everything else) of a finished run, and the last line."""
    counts = next(iter(run.outputs.values())).counts
    if call.options.stats:
        stats: dict[str, Any] = {**counts.to_json(), **run.stats}
        manifests = {name: Manifest(output.files, output.counts) for name, output in run.outputs.items()}
        stats["outputs"] = {name: {"rows": made.rows, "bytes": made.bytes} for name, made in manifests.items()}
        store.write_json(call.options.stats, stats)
        provenance = {
            "identity": identity,
            "fingerprint": run.fingerprint,
            "seconds": round(seconds, 3),
            "rows_per_second": round(counts.rows_in / seconds, 1),
            "workers": run.workers,
            "python": platform.python_version(),
            "machine": platform.machine(),
            **run.provenance,
        }
        store.write_json(provenance_path(call.options.stats), provenance)
    rejected = ", ".join(f"{rule} {number:,}" for rule, number in sorted(counts.rejected.items()))
    logger.info(
        "%s: %s in, %s out%s in %.1f s -> %s",
        run.name,
        f"{counts.rows_in:,}",
        f"{counts.rows_out:,}",
        f" ({rejected})" if rejected else "",
        seconds,
        ", ".join(str(path) for path in call.outputs.values()),
    )


def provenance_path(stats: Path) -> Path:
    """`stats/web/clean.json` -> `provenance/web/clean.json`; elsewhere `x.json` -> `x.provenance.json`."""
    parts = stats.parts
    if "stats" in parts:
        index = parts.index("stats")
        return Path(*parts[:index], "provenance", *parts[index + 1 :])
    return stats.with_suffix(".provenance.json")
