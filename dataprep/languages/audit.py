"""Which documents are audited: one in a hundred, the same ones in every run."""

import xxhash

ONE_IN = 100


def is_audited(doc_id: bytes | None) -> bool:
    """Whether a document belongs to the audit sample, by a hash of its id; never one without an id."""
    return doc_id is not None and xxhash.xxh3_64_intdigest(doc_id) % ONE_IN == 0
