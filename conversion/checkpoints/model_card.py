"""README.md of an exported model: front matter that model hubs read, then where the model comes from, from manifests alone.

What is not known is left out or marked to be filled in; nothing is claimed that no manifest says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.artifacts import Manifest
from common.options import option
from common.plain_files import read_yaml
from common.tables import markdown_table

if TYPE_CHECKING:
    from data_prep.reading.corpora import Corpus

CARD_NAME = "README.md"
UNKNOWN_LICENSE = "unknown"
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_TRAINING = (
    ("optimizer steps", ("facts", "step")),
    ("samples per step", ("arguments", "schedule", "global_batch_size")),
    ("tokens per sample", ("arguments", "data", "sequence_length")),
    ("learning rate", ("arguments", "schedule", "learning_rate")),
    ("precision", ("arguments", "precision")),
    ("recipe", ("arguments", "name")),
)
_TRANSFER = (
    ("method", "method"),
    ("vocabulary", "vocabulary"),
    ("output layer", "head"),
    ("seed", "seed"),
)


@dataclass(frozen=True)
class CardOptions:
    """What only the person who exports knows.

    Attributes:
        name: heading; by default the folder's.
        languages: ISO codes.
        license: identifier as the hub lists them.
        base_model: name on a hub; by default the one that config.json carries.
        results: parsed `result.json` files of `eval.harness`.
        corpora: what the training text was, without its files.
    """

    name: str | None = None
    languages: Sequence[str] = option("--language CODE", "model card: languages, for example sl en", (), nargs="+")
    license: str | None = option("--license", "model card: licence as hubs name it, for example apache-2.0")
    base_model: str | None = option("--base-model", "model card: name of the base model on a hub (default: from config.json)")
    results: Sequence[Mapping[str, Any]] = option("--results DIR", "model card: results of eval.harness", (), type=Path, nargs="+")
    corpora: Sequence[Corpus] = option(
        "--corpora YAML", "model card: corpora.yaml of the training text, with licences", (), type=Path, nargs="+"
    )


def model_card(
    *,
    name: str,
    config: Mapping[str, Any],
    num_parameters: int,
    facts: Mapping[str, Any],
    source: Manifest | None,
    options: CardOptions,
    splits_special_tokens: bool = False,
) -> str:
    """The text of the card.

    Args:
        name: heading, unless the options have one.
        config: config.json of the export.
        facts: of the export's manifest.
        source: manifest of the checkpoint that was exported.
        splits_special_tokens: whether its tokenizer takes text that spells a special token for text.
    """
    base_model = options.base_model or _base_model(config)
    sections = [_front_matter(config, facts, options, base_model), f"# {options.name or name}"]
    sections.append(_summary(config, num_parameters, facts, base_model))
    if transfer := [(label, _shown(facts[key])) for label, key in _TRANSFER if facts.get(key) is not None]:
        sections.append(f"## Vocabulary\n\n{_list(transfer)}")
    if splits_special_tokens:
        sections.append(_SPECIAL_TOKENS)
    if training := _training(source, facts):
        sections.append(f"## Training\n\n{_list(training)}")
    if options.corpora:
        sections.append(f"## Data\n\n{_data(options.corpora)}")
    if options.results:
        sections.append(f"## Evaluation\n\n{_evaluation(options.results)}")
    sections.append(f"## Provenance\n\n{_list(_provenance(facts, source))}")
    if options.license is None:
        sections.append("## Licence\n\nNot stated. Fill in `license` above before publishing; the licence of the base model binds it too.")
    return "\n\n".join(sections) + "\n"


def read_corpora(tables: Sequence[Path]) -> list[Corpus]:
    """What tables of corpora (`corpora.yaml` of `data_prep.collect`) say of them; the files need not be here any more.

    Raises:
        ValueError: if one is no such table, or two corpora have a name in common.
    """
    if not tables:
        return []
    from data_prep.reading.corpora import TABLE_NAME, corpus_from_row

    corpora: list[Corpus] = []
    for table in tables:
        rows = read_yaml(table)
        if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) and "name" in row for row in rows):
            raise ValueError(f"{table} holds no list of corpora; expected {TABLE_NAME} of `python -m data_prep.collect`")
        corpora += [corpus_from_row(table, {key: value for key, value in row.items() if key != "files"}) for row in rows]
    if twice := sorted({corpus.name for corpus in corpora if [other.name for other in corpora].count(corpus.name) > 1}):
        raise ValueError(f"--corpora names {', '.join(twice)} twice; give each corpus once")
    return corpora


def read_results(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """The `result.json` of folders that `eval.harness` wrote.

    Raises:
        ValueError: if one is missing or something else.
    """
    results = []
    for path in paths:
        file = path / "result.json" if path.is_dir() else path
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            results.append({"texts": dict(content["texts"]), "tasks": dict(content.get("tasks") or {}), "name": str(content["name"])})
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{file} is not a result of `python -m eval.harness` ({error!r}); name the folder of one model's results"
            ) from error
    return results


_SPECIAL_TOKENS = (
    "## Special tokens in text\n\nThe model has learned text that spells a special token, such as `<s>`, as text: `split_special_tokens` in"
    " tokenizer_config.json says so. A client that reads tokenizer.json alone takes it for the special token; there, remove it from what users write."
)


def _front_matter(config: Mapping[str, Any], facts: Mapping[str, Any], options: CardOptions, base_model: str | None) -> str:
    lines = ["---"]
    named = [language for corpus in options.corpora for language in corpus.language.split("-") if language]
    if languages := list(dict.fromkeys(options.languages or named)):
        lines += ["language:", *(f"- {json.dumps(language)}" for language in languages)]
    if options.license is None:
        lines.append(f"license: {UNKNOWN_LICENSE}  # fill in before publishing")
    else:
        lines.append(f"license: {json.dumps(options.license)}")
    if base_model is not None:
        lines += [f"base_model: {json.dumps(base_model)}", "base_model_relation: finetune"]
    tags = [str(config.get("model_type", "")), "nemo", "megatron"]
    if facts.get("method") is not None:
        tags += ["vocabulary-transfer", str(facts["method"])]
    lines += [
        "library_name: transformers",
        "pipeline_tag: text-generation",
        "tags:",
        *(f"- {json.dumps(tag)}" for tag in tags if tag),
        "---",
    ]
    return "\n".join(lines)


def _base_model(config: Mapping[str, Any]) -> str | None:
    """The name that transformers put into config.json, where it is one of a hub and not of a folder."""
    found = config.get("_name_or_path")
    return found if isinstance(found, str) and _HUB_NAME.fullmatch(found) and not Path(found).exists() else None


def _summary(config: Mapping[str, Any], num_parameters: int, facts: Mapping[str, Any], base_model: str | None) -> str:
    listed = config.get("architectures")
    architecture = ", ".join(map(str, listed)) if isinstance(listed, list) and listed else str(config.get("model_type"))
    tied = "one matrix" if facts.get("tie_word_embeddings") else "two matrices"
    text = f"{architecture} with {num_parameters:,} parameters and {config.get('vocab_size'):,} tokens, {tied} for input and output."
    return f"{text} Made from {base_model}." if base_model is not None else text


def _training(source: Manifest | None, facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    if source is None or source.stage != "recipes.train":
        return [("optimizer steps", _shown(facts["step"]))] if facts.get("step") else []
    rows = []
    for label, (part, *keys) in _TRAINING:
        value: Any = getattr(source, part)
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        if value is not None:
            rows.append((label, _shown(value)))
    if facts.get("consumed_tokens"):
        rows.append(("tokens seen", _shown(facts["consumed_tokens"])))
    return rows


def consumed_tokens(source: Manifest | None) -> int | None:
    """Tokens that the training of a checkpoint had seen, by its recipe; None where no manifest says."""
    if source is None or source.stage != "recipes.train":
        return None
    try:
        samples = source.facts.get(
            "samples"
        )  # where batches grew, they are less than the steps would say; earlier versions did not write it
        if samples is None:
            samples = source.facts["step"] * source.arguments["schedule"]["global_batch_size"]
        return int(samples * source.arguments["data"]["sequence_length"])
    except (KeyError, TypeError):
        return None


def _data(corpora: Sequence[Corpus]) -> str:
    header = ("corpus", "language", "domain", "licence", "source")
    rows = [(one.name, *(getattr(one, name) or "not stated" for name in header[1:])) for one in corpora]
    text = markdown_table(header, rows, text_columns=len(header))
    unlicensed = [one.name for one in corpora if not one.licence]
    return f"{text}\n\nNo licence is stated for {', '.join(unlicensed)}: look for it before publishing." if unlicensed else text


def _evaluation(results: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for result in results:
        for text, figures in result["texts"].items():
            rows.append((result["name"], text, "bits per byte", f"{figures['bits_per_byte']:.4f}"))
        for task, figures in result["tasks"].items():
            for metric, found in figures["metrics"].items():
                error = f" ± {found['stderr']:.4f}" if found.get("stderr") is not None else ""
                rows.append((result["name"], task, metric, f"{found['value']:.4f}{error}"))
    return markdown_table(("model", "text or task", "figure", "value"), rows, text_columns=3)


def _provenance(facts: Mapping[str, Any], source: Manifest | None) -> list[tuple[str, str]]:
    rows = [("tokenizer", _shown(facts["tokenizer_digest"]))] if facts.get("tokenizer_digest") else []
    if source is None:
        return [*rows, ("exported from", "a checkpoint without a manifest")]
    rows.append(("exported from", f"output of `{source.stage}`, {source.digest}"))
    rows += [(f"its input, {Path(name).name}", digest) for name, digest in source.inputs.items()]
    if source.commit:
        rows.append(("code", f"Scion, commit {source.commit}"))
    rows.append(("versions", ", ".join(f"{package} {version}" for package, version in source.versions.items())))
    return rows


def _list(rows: Sequence[tuple[str, str]]) -> str:
    return "\n".join(f"- {label}: {value}" for label, value in rows)


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_shown(item)}" for key, item in value.items() if not isinstance(item, Mapping))
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
