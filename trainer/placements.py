"""How tensor parallelism splits the matrices and tables of a model: the built-in plan, and changes to it by the user.

Names are those of the model's modules, from `transformer.` on. `parallel.placements` has entries NAME=PLACEMENT, where
NAME is a module's whole name or its end, and may contain `*`; the last matching entry decides. Entries are checked
here, before any process starts; `trainer/parallel/tensor.py` does the splitting.
"""

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from pipelines.errors import ConfigError, did_you_mean

MATRICES = {"attn.qkv": "column", "attn.c_proj": "row", "mlp.c_fc": "column", "mlp.c_proj": "row"}
"""The matrices of a block, as Megatron splits them. column: each process has some of the outputs (for attn.qkv some
heads); row: some of the inputs; replicate: the whole matrix."""
TABLES = {"wte": "vocabulary", "wpe": "replicate"}
"""The embeddings. vocabulary: each process has the vectors of some tokens; hidden: some columns of all vectors. wte is
also the language-model head."""
CHOICES = {
    **dict.fromkeys(MATRICES, ("column", "row", "replicate")),
    "wte": ("vocabulary", "hidden", "replicate"),
    "wpe": ("replicate", "hidden"),
}


def placement(name: str, entries: Sequence[str]) -> str:
    """Return how the module of this name is split."""
    chosen = (MATRICES | TABLES)[_kind(name)]
    for entry in entries:
        pattern, _, value = entry.partition("=")
        if _matches(name, pattern):
            chosen = value
    return chosen


def check_placements(entries: Sequence[str], tp: int, n_layer: int, n_head: int, n_embd: int) -> None:
    """Raise ConfigError for impossible entries, and for a tp that does not divide a dimension that is split.

    `n_embd` 0: unknown to the caller.
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
    if _matches("lm_head", pattern) and "*" not in pattern:
        raise ConfigError(f"parallel.placements {entry}: the head is the token embedding; say wte={value}")
    matching = [name for name in names if _matches(name, pattern)]
    if not matching:
        raise ConfigError(
            f"parallel.placements {entry}: the model has no such part.{did_you_mean(pattern, MATRICES | TABLES)}"
        )
    for name in matching:
        choices = CHOICES[_kind(name)]
        if value not in choices:
            raise ConfigError(
                f"parallel.placements {entry}: {name} cannot be {value!r}; it can be {', '.join(choices[:-1])} or "
                f"{choices[-1]}"
            )


def _matches(name: str, pattern: str) -> bool:
    return fnmatchcase(f".{name}", f"*.{pattern}")


def _kind(name: str) -> str:
    return next(kind for kind in CHOICES if name.endswith(f".{kind}"))


def _short(names: Sequence[str], n_layer: int) -> str:
    return "attn.qkv" if len(names) == n_layer else names[0]


def _divisors(number: int) -> str:
    *shown, last = (str(each) for each in range(1, number + 1) if number % each == 0)
    return f"{', '.join(shown)} or {last}" if shown else last
