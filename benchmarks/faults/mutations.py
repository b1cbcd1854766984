"""Seeded damage: bytes flipped, cut, repeated, swapped, filled, or headers of another kind in front."""

import random
from collections.abc import Callable

MAGICS = (
    b"\x1f\x8b\x08\x00",
    b"\x28\xb5\x2f\xfd",
    b"\xfd7zXZ\x00",
    b"PAR1",
    b"ARROW1\x00\x00",
    b"WARC/1.0\r\n",
    b"PK\x03\x04",
)
TOKENS = (
    b"\x00",
    b"\xff" * 8,
    b"\n",
    b"\r\n\r\n",
    b"\x1b[31m",
    b'"',
    b"{",
    b"[" * 300,
    b"-1",
    b"1e999",
    b"NaN",
    b"9" * 30,
)


def flip(data: bytearray, chance: random.Random) -> None:
    """Change one to eight bytes."""
    for _ in range(chance.randint(1, 8)):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def cut(data: bytearray, chance: random.Random) -> None:
    """Drop the end, or a piece of the middle."""
    start = chance.randrange(len(data))
    del data[start : len(data) if chance.random() < 0.5 else start + chance.randint(1, 200)]


def repeat(data: bytearray, chance: random.Random) -> None:
    """Write a piece twice."""
    start = chance.randrange(len(data))
    data[start:start] = data[start : start + chance.randint(1, 2000)]


def swap(data: bytearray, chance: random.Random) -> None:
    """Exchange the beginning and a piece of the same size."""
    size = min(chance.randint(1, 64), len(data) // 2)
    start = chance.randrange(size, len(data) - size + 1)
    data[:size], data[start : start + size] = data[start : start + size], data[:size]


def fill(data: bytearray, chance: random.Random) -> None:
    """Overwrite a piece with one byte."""
    start, size = chance.randrange(len(data)), chance.randint(1, 100)
    data[start : start + size] = bytes([chance.choice((0, 255, 10, 65))]) * len(data[start : start + size])


def insert(data: bytearray, chance: random.Random) -> None:
    """Put in what parsers trip over."""
    start = chance.randrange(len(data) + 1)
    data[start:start] = chance.choice(TOKENS) * chance.choice((1, 1, 50))


def head(data: bytearray, chance: random.Random) -> None:
    """Begin as another format does, in place of the own beginning or before it."""
    magic = chance.choice(MAGICS)
    data[: len(magic) if chance.random() < 0.5 else 0] = magic


DAMAGES: tuple[Callable[[bytearray, random.Random], None], ...] = (flip, cut, repeat, swap, fill, insert, head)


def mutated(data: bytes, chance: random.Random) -> tuple[bytes, str]:
    """The bytes after one to three kinds of damage, and what was done."""
    made, done = bytearray(data), list[str]()
    for damage in chance.choices(DAMAGES, k=chance.choice((1, 1, 2, 3))):
        if len(made) > 1:
            damage(made, chance)
            done.append(damage.__name__)
    return bytes(made), "+".join(done)
