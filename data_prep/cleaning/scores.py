"""Thresholds on document scores: numbers in the corpus (FineWeb-Edu's `score`, HPLT's `doc_scores`), or labels of a fastText model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep.cleaning import setting_values
from data_prep.cleaning.fasttext_model import FastTextModel, load

_KEYS = {"key", "model", "label", "min", "max", "missing", "as"}
KEEP, DROP = "keep", "drop"
SCORE = "score: "


@dataclass(frozen=True)
class ScoreRule:
    """A number of a document and what it must be.

    Attributes:
        key: where a document has it: names of objects and numbers of lists behind dots (doc_scores.0); None for a model's.
        model: file of a supervised fastText model, such as DCLM's; None for a key.
        label: of the model; its probability is the number.
        minimum, maximum: a document below or above goes.
        drops_missing: whether a document without the number goes.
        written_as: key under which a model's number is written into the document; "" to leave it out.
    """

    name: str
    key: str | None
    model: Path | None
    minimum: float | None
    maximum: float | None
    label: str = ""
    drops_missing: bool = False
    written_as: str = ""


def score_rule(name: str, row: Any) -> ScoreRule:
    """The rule of a row of the YAML.

    Raises:
        ValueError: if it is of another form.
    """
    where = f"scores: {name}"
    if not isinstance(row, dict) or set(row) - _KEYS or ("key" in row) == ("model" in row) or ("label" in row) != ("model" in row):
        raise ValueError(f"{where} is {row!r}; expected {{key: KEY, or model: FILE and label: NAME, min: NUMBER, max: NUMBER}}, or false")
    setting_values.text(f"{where}: {'key' if 'key' in row else 'model'}", row["key"] if "key" in row else row["model"])
    minimum, maximum = row.get("min"), row.get("max")
    for side, value in (("min", minimum), ("max", maximum)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value)):
            raise ValueError(f"{where}: {side} is {value!r}; expected a number")
    written_as = row.get("as", "")
    if minimum is None and maximum is None and not written_as:
        raise ValueError(f"{where} has neither min nor max; expected one of them" + (", or as" if "model" in row else ""))
    if row.get("missing", KEEP) not in (KEEP, DROP) or not isinstance(written_as, str) or ("as" in row and "model" not in row):
        raise ValueError(f"{where} is {row!r}; expected missing: keep or drop (with a key), as: NAME (with a model)")
    if written_as == "id":
        raise ValueError(f"{where}: as is 'id', by which documents are known; choose another name")
    model = Path(row["model"]) if "model" in row else None
    label = str(row.get("label", ""))
    if model is not None and label not in (known := load(model).labels):
        raise ValueError(f"{where}: the model {model} has no label {label!r}; it has {', '.join(known[:10])}")
    setting_values.require_in_order(where, minimum, maximum)
    return ScoreRule(name, row.get("key"), model, minimum, maximum, label, row.get("missing") == DROP, written_as)


def value_at(fields: Mapping[str, Any], key: str) -> float | None:
    """The number under a key; None if there is none.  A number in a text counts, a list or truth value does not."""
    found: Any = fields
    if key in fields:
        found = fields[key]
    else:
        for part in key.split("."):
            if isinstance(found, Mapping):
                found = found.get(part)
            elif isinstance(found, list) and part.isdecimal() and int(part) < len(found):
                found = found[int(part)]
            else:
                return None
    if isinstance(found, bool) or not isinstance(found, int | float | str):
        return None
    try:
        value = float(found)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


class Scores:
    """The scores of documents by some rules."""

    def __init__(self, rules: tuple[ScoreRule, ...]) -> None:
        self._columns = [rule for rule in rules if rule.key is not None]
        self._models: list[tuple[ScoreRule, FastTextModel]] = [(rule, load(rule.model)) for rule in rules if rule.model is not None]

    @property
    def ask_for_fields(self) -> bool:
        """Whether anything depends on what a document has."""
        return bool(self._columns)

    def refuses_fields(self, fields: Mapping[str, Any], not_judged: Callable[[str, str], None]) -> tuple[str, str] | None:
        """Reason and detail why a document does not pass by what it has; None where it does.

        Args:
            not_judged: told reason and detail of what it would need and does not have, where that keeps it.
        """
        for rule in self._columns:
            assert rule.key is not None
            value = value_at(fields, rule.key)
            if value is None:
                if rule.drops_missing:
                    return SCORE + rule.name, f"no {rule.key}"
                not_judged(SCORE + rule.name, f"no {rule.key}")
            elif _beyond(rule, value):
                return SCORE + rule.name, f"{rule.key} {value:g}"
        return None

    def of_text(self, text: str) -> tuple[dict[str, float], tuple[str, str] | None]:
        """What is written into the document, and reason and detail why its text does not pass; None where it does."""
        written: dict[str, float] = {}
        for rule, model in self._models:
            value = float(model.probabilities(text)[model.labels.index(rule.label)])
            if rule.written_as:
                written[rule.written_as] = round(value, 4)
            if _beyond(rule, value):
                return written, (SCORE + rule.name, f"{value:.4g}")
        return written, None


def _beyond(rule: ScoreRule, value: float) -> bool:
    return (rule.minimum is not None and value < rule.minimum) or (rule.maximum is not None and value > rule.maximum)
