"""Many languages in one run: the table that names their data, the temperature at which they are drawn, and what a run has seen of each.

A language of n tokens is drawn with the weight n ** a: a = 1 is in proportion to the text, a = 0 all alike; XLM-R (Conneau et al. 2020, section 3.1)
and those based on it use 0.3.  Within a language data sets are drawn in proportion to their tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from common.artifacts import read_manifest
from common.plain_files import read_json, read_yaml
from data_prep.mixing.report import BLEND, HELD_OUT, MEGATRON, UNDETERMINED
from data_prep.reading.languages import is_language
from recipes.rules.schema import Recipe

_PARTS = ("train", "validation")


@dataclass(frozen=True)
class LanguageData:
    """The data of a language.

    Attributes:
        train: data sets, outputs of data_prep.to_megatron.
        validation: a held-out one, where there is one.
    """

    train: tuple[str, ...]
    validation: str | None = None


def with_mixture(recipe: Recipe) -> Recipe:
    """The recipe with the data sets of a mixture, where `data.train` is the output of data_prep.mixture --megatron, or its DIR.

    What the recipe says itself, of validation, languages and shares, stays.

    Raises:
        ValueError: if the mixture has no data sets yet.
    """
    data, folder = recipe.data, Path(recipe.data.train[0] if len(recipe.data.train) == 1 else "")
    if len(data.train) != 1 or not (folder / BLEND).is_file():
        return recipe
    made = read_json(folder / BLEND)
    base = folder if read_manifest(folder) is None else folder / MEGATRON
    if not base.is_dir():
        raise ValueError(
            f"data.train is {folder}, a mixture whose text is not tokenized yet; make it with --megatron, or run the commands that it printed"
        )
    epochs = tuple(made["epochs"])
    held_out = {language: str(base / HELD_OUT / language) for language in made["held_out_languages"]}
    if set(held_out) == {UNDETERMINED}:
        held_out = {"all": held_out[UNDETERMINED]}
    languages = () if UNDETERMINED in made["languages"] else tuple(made["languages"])
    shares = data.weights or data.shares or data.blend or data.epochs or data.sampling_exponent is not None
    return replace(
        recipe,
        data=replace(
            data,
            train=tuple(str(base / name) for name in made["corpora"]),
            languages=data.languages or languages,
            epochs=data.epochs if shares or set(epochs) == {1.0} else epochs,
            validation=data.validation or held_out,
        ),
    )


def with_table(recipe: Recipe) -> Recipe:
    """The recipe with the data sets of its table (`data.table`), if it has one.

    Raises:
        ValueError: if the table cannot be read, or the recipe names data sets besides it.
    """
    data = recipe.data
    if data.table is None:
        return recipe
    if given := [name for name in ("train", "languages", "validation") if getattr(data, name)]:
        raise ValueError(f"data.table and data.{given[0]} both name data sets; give one of them")
    table = read_table(Path(data.table))
    named = [(path, language) for language, entry in table.items() for path in entry.train]
    return replace(
        recipe,
        data=replace(
            data,
            train=tuple(path for path, _ in named),
            languages=tuple(language for _, language in named),
            validation={language: entry.validation for language, entry in table.items() if entry.validation is not None},
        ),
    )


def read_table(path: Path) -> dict[str, LanguageData]:
    """Language -> its data sets, of a YAML file; paths in it are relative to its folder.

    Raises:
        ValueError: naming the entry that is none.
    """
    if not path.is_file():
        raise ValueError(f"data.table is {path}, which does not exist; expected a YAML file of languages and their data sets")
    content = read_yaml(path)
    if not isinstance(content, dict) or not content:
        raise ValueError(f"the table {path} holds no languages; expected lines such as 'slv_Latn: data/slv_Latn'")
    return {_language(path, key): _entry(path, key, value) for key, value in content.items()}


def _language(path: Path, key: object) -> str:
    if isinstance(key, bool):
        raise ValueError(f"the table {path} has a language that YAML takes for {str(key).lower()}; write it in quotes, such as 'no'")
    if not is_language(str(key)):
        raise ValueError(f"the table {path} has the language {key!r}; expected a code such as sl, slv or slv_Latn")
    return str(key)


def _entry(path: Path, language: object, value: object) -> LanguageData:
    parts: dict[str, Any] = value if isinstance(value, dict) else {"train": value}
    train, validation = parts.get("train"), parts.get("validation")
    train = [train] if isinstance(train, str) else train
    is_list = isinstance(train, list) and train and all(isinstance(each, str) and each for each in train)
    if train is None or not is_list or not isinstance(validation, str | None) or set(parts) - {*_PARTS}:
        raise ValueError(
            f"the table {path} has {value!r} for the language {language}; expected a data set, a list of them, or"
            " {train: DATA SET, validation: DATA SET}"
        )
    folder = path.parent
    return LanguageData(tuple(str(folder / each) for each in train), None if validation is None else str(folder / validation))


def drawn_shares(tokens: Mapping[str, float], exponent: float) -> dict[str, float]:
    """Share of the samples of each language.

    Args:
        tokens: of each language, above 0.
    """
    weights = {language: number**exponent for language, number in tokens.items()}
    return {language: weight / sum(weights.values()) for language, weight in weights.items()}


@dataclass(frozen=True)
class SeenLanguage:
    """What a run has seen of a language.

    Attributes:
        tokens: of all its data sets, each once.
        planned_share: of the samples of the run.
        samples, share: seen so far, and of all that were.
        passes: over its data.
    """

    tokens: int
    planned_share: float
    samples: int
    share: float
    passes: float


def seen_languages(
    languages: Sequence[str], tokens: Sequence[int], weights: Sequence[float], samples: Sequence[int], *, sequence_length: int
) -> dict[str, dict[str, Any]]:
    """What is known of each language, by its code, from what is known of each data set.

    Args:
        tokens: of each data set.
        weights: how much of each is drawn, in proportion to the others.
        samples: seen of each so far.
    """
    sums = {language: [0.0, 0.0, 0.0] for language in languages}
    for language, *values in zip(languages, tokens, weights, samples, strict=True):
        sums[language] = [total + value for total, value in zip(sums[language], values, strict=True)]
    all_weights, all_samples = sum(weights), sum(samples)
    return {
        language: asdict(
            SeenLanguage(
                int(of_tokens), weight / all_weights, int(seen), seen / max(all_samples, 1), seen * sequence_length / max(of_tokens, 1)
            )
        )
        for language, (of_tokens, weight, seen) in sums.items()
    }
