"""Tar archives made in memory, and OpenWebText in small: a nest of them."""

import io
import lzma
import tarfile
from collections.abc import Mapping
from pathlib import Path

LINES = "The wheel turns, and the mill grinds what the river brings.\n"


def tar_of(members: Mapping[str, bytes], *special: tarfile.TarInfo, format_: int = tarfile.PAX_FORMAT) -> bytes:
    """A tar with these files, then the special members, which have no bytes."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=format_) as tar:
        for name, body in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(body)
            tar.addfile(member, io.BytesIO(body))
        for member in special:
            tar.addfile(member)
    return made.getvalue()


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    """A member that is no file."""
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


def openwebtext_texts(number: int) -> dict[str, str]:
    """The texts of one inner archive under their names, with the runs of empty lines that the real ones have."""
    return {
        f"{number * 10 + i:07d}-{number * 10 + i:032x}.txt": f"Page {number}-{i}.\n\n\n\n\n{LINES * 5}\n\n"
        for i in range(5)
    }


def inner_archive(number: int) -> bytes:
    """`urlsf_subset00-N_data.xz`: a tar, compressed, without saying tar."""
    members = {name: text.encode() for name, text in openwebtext_texts(number).items()}
    return lzma.compress(tar_of(members, format_=tarfile.GNU_FORMAT), preset=0)


def openwebtext_nest(path: Path, *numbers: int) -> Path:
    """The outer archive, compressed as its name says."""
    nest = tar_of({f"openwebtext/urlsf_subset00-{n}_data.xz": inner_archive(n) for n in numbers})
    path.write_bytes(lzma.compress(nest, preset=0) if path.suffix == ".xz" else nest)
    return path


def openwebtext_documents(*numbers: int) -> list[tuple[str, str]]:
    """(url, text) of every document, the text as the Hub's data set has it."""
    return [
        (f"openwebtext/urlsf_subset00-{n}_data.xz/{name}", text.replace("\n\n\n\n\n", "\n\n").strip())
        for n in numbers
        for name, text in openwebtext_texts(n).items()
    ]
