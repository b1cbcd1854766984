"""How tensor parallelism splits the matrices and tables of a model: the built-in plan, and a user's own beside it.

Names are those of the model's modules, from `transformer.` on. `parallel.placements` has entries NAME=PLACEMENT: NAME
is the whole name or its end, and may have `*`; of several that fit, the last decides. What suits is checked here,
before any process starts; `trainer/parallel/tensor.py` does the splitting.
"""

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from pipelines.errors import ConfigError, did_you_mean

MATRICES = {"attn.qkv": "column", "attn.c_proj": "row", "mlp.c_fc": "column", "mlp.c_proj": "row"}
"""Of a block, in Megatron's way. column: each process has some of the outputs (of attn.qkv some heads); row: some of
the inputs; replicate: all of it."""
TABLES = {"wte": "vocabulary", "wpe": "replicate"}
"""The embeddings. vocabulary: each process has the vectors of some tokens; hidden: some columns of all vectors. The
language-model head is wte."""
CHOICES = {
    **dict.fromkeys(MATRICES, ("column", "row", "replicate")),
    "wte": ("vocabulary", "hidden", "replicate"),
    "wpe": ("replicate", "hidden"),
}


def placement(name: str, entries: Sequence[str]) -> str:
    """How the module of this name is split."""
    chosen = (MATRICES | TABLES)[_kind(name)]
    for entry in entries:
        pattern, _, value = entry.partition("=")
        if _fits(name, pattern):
            chosen = value
    return chosen


def check_placements(entries: Sequence[str], tp: int, n_layer: int, n_head: int, n_embd: int) -> None:
    """Raise ConfigError for entries that cannot be, and for a tp that does not divide what is split.

    `n_embd` 0: not known here.
    """
    if entries and tp == 1:
        raise ConfigError(f"parallel.placements {entries[0]}: nothing is split, since parallel.tp is 1; set tp, or []")
    names = [f"transformer.h.{layer}.{matrix}" for layer in range(n_layer) for matrix in MATRICES]
    names += [f"transformer.{table}" for table in TABLES]
    for entry in entries:
        _check_entry(entry, names)
    plan = {name: placement(name, entries) for name in names}
    if n_head % tp and (heads := [name for name in plan if name.endswith("attn.qkv") and plan[name] == "column"]):
        raise ConfigError(
            f"parallel.tp {tp} does not divide the model's {n_head} heads: use tp {_divisors(n_head)}, or give "
            f"{_short(heads, n_layer)} another placement than column"
        )
    split = [name for name in plan if plan[name] in ("column", "row", "hidden")]
    if split and n_embd % tp:
        raise ConfigError(
            f"parallel.tp {tp} does not divide model.n_embd {n_embd}, by which {split[0]} is split: use tp "
            f"{_divisors(n_embd)}"
        )


def _check_entry(entry: str, names: Iterable[str]) -> None:
    pattern, equals, value = entry.partition("=")
    if not equals:
        raise ConfigError(f"parallel.placements {entry}: expected NAME=PLACEMENT, such as mlp.c_proj=column")
    if _fits("lm_head", pattern) and "*" not in pattern:
        raise ConfigError(f"parallel.placements {entry}: the head is the token embedding; say wte={value}")
    fitting = [name for name in names if _fits(name, pattern)]
    if not fitting:
        raise ConfigError(
            f"parallel.placements {entry}: the model has no such part.{did_you_mean(pattern, MATRICES | TABLES)}"
        )
    for name in fitting:
        choices = CHOICES[_kind(name)]
        if value not in choices:
            raise ConfigError(
                f"parallel.placements {entry}: {name} cannot be {value!r}; it can be {', '.join(choices[:-1])} or "
                f"{choices[-1]}"
            )


def _fits(name: str, pattern: str) -> bool:
    return fnmatchcase(f".{name}", f"*.{pattern}")


def _kind(name: str) -> str:
    return next(kind for kind in CHOICES if name.endswith(f".{kind}"))


def _short(names: Sequence[str], n_layer: int) -> str:
    return "attn.qkv" if len(names) == n_layer else names[0]


def _divisors(number: int) -> str:
    *shown, last = (str(each) for each in range(1, number + 1) if number % each == 0)
    return f"{', '.join(shown)} or {last}" if shown else last
