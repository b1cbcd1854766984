"""The page of all rules, `docs/rules.md`: what each measures, and its threshold in every preset.

python -m dataprep.cleaning.rule_page > docs/rules.md
"""

from dataprep.cleaning.checks import shown
from dataprep.cleaning.config import CleanConfig
from dataprep.cleaning.rules import Rule
from dataprep.cleaning.table import LANGUAGE, LANGUAGE_PROBABILITY, ORDER, TOO_FEW_TOKENS, all_rules, threshold_of
from pipelines import presets

_HEAD = """# Rules of `clean`

In the order applied; the first that fails is the reason. A rule is `<family>_<field>` of the section `clean`, so
`gopher_min_words` is set by `--gopher.min-words` or `clean.gopher.min_words`. Columns on the right: its threshold in
each preset of `configs/clean/`. Made by `python -m dataprep.cleaning.rule_page`; do not edit by hand.
"""
_BASIC = {
    TOO_FEW_TOKENS: ("at least", "tokens (`min_tokens`)", "NVIDIA/Megatron-LM: tools/openwebtext/cleanup_dataset.py"),
    LANGUAGE: ("one of", "codes (`languages`)", "langdetect 1.0.9"),
    LANGUAGE_PROBABILITY: ("at least", "probability (`min_language_probability`)", "langdetect 1.0.9"),
}


def rule_page() -> str:
    """The page as Markdown."""
    chosen = {name: presets.load(CleanConfig, "clean", name) for name in presets.names("clean")}
    rules = {rule.name: rule for rule in all_rules()}
    lines = [f"| rule | keeps | unit | {' | '.join(chosen)} | source |", f"|{' --- |' * (len(chosen) + 4)}"]
    for name in ORDER:
        thresholds = [_threshold(config, name) for config in chosen.values()]
        keeps, unit, source = _BASIC.get(name) or _described(rules[name])
        lines.append(f"| `{name}` | {keeps} | {unit} | {' | '.join(thresholds)} | {source} |")
    return "\n".join([_HEAD, *lines, ""])


def _described(rule: Rule) -> tuple[str, str, str]:
    return rule.keeps.replace("_", " "), rule.unit, rule.source


def _threshold(config: CleanConfig, name: str) -> str:
    if name == TOO_FEW_TOKENS:
        return str(config.min_tokens or "")
    if name == LANGUAGE:
        return ", ".join(config.languages)
    if name == LANGUAGE_PROBABILITY:
        return str(config.min_language_probability or "")
    threshold = threshold_of(config, name)
    return "" if threshold is None else shown(threshold)


if __name__ == "__main__":
    print(rule_page(), end="")
