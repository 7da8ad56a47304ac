"""The filter settings, one YAML: read, checked and merged over the settings they are based on; the result is stored in the manifest.

A file says what it begins with (`base: standard`, `web` or `none`) and what differs; `false` switches a part off.  Under `languages` stand stop
words and rules that differ in a language, so a new language is configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from copy import deepcopy
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from common.plain_files import literal_loader, read_yaml
from data_prep.cleaning import setting_values
from data_prep.cleaning.document_rules import MEASURES, Filter, Phrases, Threshold, filter_classes
from data_prep.cleaning.language_filter import SCRIPTS
from data_prep.cleaning.line_rules import LineRule, line_rules
from data_prep.cleaning.personal_data import Kind, kinds_of
from data_prep.cleaning.scores import ScoreRule, score_rule
from data_prep.reading.languages import CLOSE_GROUPS, Groups, is_language, plain_code, short_code

FOLDER = Path(__file__).with_name("filters")
NONE = "none"
BUILT_IN = (NONE, *sorted(path.stem for path in FOLDER.glob("*.yaml")))
_EMPTY: dict[str, Any] = {
    "mojibake": False,
    "markup": False,
    "max_hole_share": False,
    "same_text": False,
    "lines": {},
    "repeated_lines": False,
    "phrases": {},
    "blocked_urls": False,
    "personal_data": {},
    "rules": {},
    "languages": {},
    "close_languages": CLOSE_GROUPS,
    "scores": {},
}
_LIMIT_KEYS = {"measure", "max", "min"}
_RULE_KEYS = {*_LIMIT_KEYS, "from_words", "from_lines", "unless", "needs_stop_words"}
_LANGUAGE_KEYS = {"stop_words", "rules"}
_REPEATED_KEYS = {"max_words", "min_documents", "min_share"}
_REPLACEMENT = "[{kind}]"


@dataclass(frozen=True)
class FilterSettings:
    """What a whole, checked YAML says, for one language."""

    mojibake: bool
    markup: bool
    max_hole_share: float | None
    same_text: int
    lines: tuple[LineRule, ...]
    repeated_lines: dict[str, float] | None
    phrases: tuple[Phrases, ...]
    blocked_urls: dict[str, Any] | None
    personal_data: tuple[Kind, ...]
    replacement: str
    rules: tuple[Filter, ...]
    stop_words: tuple[str, ...]
    scores: tuple[ScoreRule, ...] = ()


def read_filters(name: str) -> dict[str, Any]:
    """The whole settings of a built-in name or a file, with what they begin with.

    Raises:
        ValueError: if there is no such file, or something in it is unknown or of the wrong kind, naming it.
    """
    path = FOLDER / f"{name}.yaml" if name in BUILT_IN else Path(name)
    if name == NONE:
        return deepcopy(_EMPTY)
    if not path.is_file():
        raise ValueError(f"--filters {name} is neither a file nor one of {', '.join(BUILT_IN)}")
    given = read_yaml(path, loader=literal_loader())  # a language may be `no`
    if not isinstance(given, dict):
        raise ValueError(f"{path} holds no filter settings; expected a mapping that may begin with 'base: standard'")
    base = given.pop("base", NONE)
    if base not in BUILT_IN or base == name:
        raise ValueError(f"{path} begins with 'base: {base}'; expected one of {', '.join(BUILT_IN)}")
    if unknown := set(given) - set(_EMPTY):
        raise ValueError(f"{path} has the unknown key {', '.join(sorted(map(str, unknown)))}; the known ones are base, {', '.join(_EMPTY)}")
    for key in ("lines", "phrases", "personal_data", "rules", "languages", "scores"):
        if not isinstance(given.get(key, {}), dict):
            raise ValueError(f"{path}, {key} is {given[key]!r}; expected a mapping, as the built-in settings have it")
    below = read_filters(base)
    try:
        setting_values.require_text_keys(given)
        given["languages"] = _by_plain_code(given.get("languages", {}))
    except ValueError as error:
        raise ValueError(f"{path}, {error}") from None
    _require_known_rules(path, base, set(below["rules"]), given)
    whole = _laid_over(below, given)
    try:
        for language in (None, *whole["languages"]):
            settings_for(whole, language)
        close_groups(whole)
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        problem = str(error) if isinstance(error, ValueError) else "a part is not of the form that the built-in settings have"
        raise ValueError(f"{path}, {problem}") from error
    return whole


def _require_known_rules(path: Path, base: str, known: set[str], given: Mapping[str, Any]) -> None:
    """Refuse what changes a rule that is not there, which would be a rule without a measure."""
    languages = given.get("languages", {})
    parts = {"rules": given.get("rules", {})}
    parts |= {
        f"languages: {name}: rules": part["rules"]
        for name, part in languages.items()
        if isinstance(part, dict) and isinstance(part.get("rules"), dict)
    }
    known = known | {name for name, row in parts["rules"].items() if isinstance(row, dict) and {"measure", "filter"} & set(row)}
    for where, rules in parts.items():
        for name, row in rules.items():
            if name not in known and isinstance(row, dict) and row and not {"measure", "filter"} & set(row):
                close = get_close_matches(str(name), known, 1)
                meant = f"did you mean {close[0]}?" if close else "a new rule names its measure"
                raise ValueError(f"{path}, {where}: {name} has no measure and is not a rule of {base}; {meant}")


def settings_for(whole: Mapping[str, Any], language: str | None) -> FilterSettings:
    """The settings for texts of a language, of which rules and stop words depend on it; the general ones where it is not under `languages`.

    Raises:
        ValueError: if something is unknown or of the wrong kind.
    """
    own = own_settings(whole, language)
    own_rules = own.get("rules") or {}
    if not isinstance(own_rules, dict):
        raise ValueError(f"languages: {language}: rules is {own_rules!r}; expected a mapping, as the rules of all languages have it")
    merged = {**whole, "rules": _laid_over(whole["rules"] or {}, own_rules)}
    rules = [_rule(name, row) for name, row in merged["rules"].items() if row is not False]
    personal = dict(merged["personal_data"] or {})
    replacement = personal.pop("replacement", _REPLACEMENT)
    if not isinstance(replacement, str):
        raise ValueError(f"personal_data: replacement is {replacement!r}; expected text, in which {{kind}} becomes the name of the kind")
    stop_words = setting_values.texts(f"languages: {language}: stop_words", own.get("stop_words"))
    return FilterSettings(
        setting_values.switch("mojibake", merged["mojibake"]),
        setting_values.switch("markup", merged["markup"]),
        setting_values.number("max_hole_share", merged["max_hole_share"], 0, 1),
        int(setting_values.number("same_text", merged["same_text"], 0, 1_000_000) or 0),
        line_rules(merged["lines"] or {}),
        _repeated_lines(merged["repeated_lines"]),
        _phrases(merged["phrases"] or {}),
        _blocked_urls(merged["blocked_urls"]),
        kinds_of(personal),
        replacement,
        tuple(rule for rule in rules if stop_words or not getattr(rule, "needs_stop_words", False)),
        stop_words,
        _scores(merged["scores"] or {}),
    )


def own_settings(whole: Mapping[str, Any], language: str | None) -> Mapping[str, Any]:
    """What stands under `languages` for a language in its script, or in any; empty where nothing does.

    Raises:
        ValueError: if it is not a mapping, or has an unknown key.
    """
    if language is None:
        return {}
    for code in (plain_code(language), short_code(language)):
        if (own := whole["languages"].get(code)) is not None and own is not False:
            return setting_values.mapping(f"languages: {code}", own, _LANGUAGE_KEYS)
    return {}


def _by_plain_code(languages: Mapping[str, Any]) -> dict[str, Any]:
    """The same by the codes that `plain_code` gives, so that slv and sl are one.

    Raises:
        ValueError: if something is no code, or two are of one language.
    """
    found: dict[str, str] = {}
    for code in languages:
        if not is_language(code):
            raise ValueError(f"languages has {code!r}, which is not a language code; expected ISO 639, such as sl, slv or sr-Latn")
        if (plain := plain_code(code)) in found:
            raise ValueError(f"languages has {found[plain]} and {code}, which are one language; keep one of them")
        found[plain] = code
    return {plain: languages[code] for plain, code in found.items()}


def close_groups(whole: Mapping[str, Any]) -> Groups:
    """The groups of close languages that a whole YAML names.

    Raises:
        ValueError: if they are not a mapping of names to languages with their scripts.
    """
    groups = whole["close_languages"] or {}
    such = "languages with their scripts, such as {nb: [Latn], nn: [Latn]}"
    if not isinstance(groups, dict):
        raise ValueError(f"close_languages is {groups!r}; expected names of groups, each with {such}")
    for name, group in groups.items():
        if group is False:
            continue
        if not isinstance(group, dict) or not all(is_language(str(code)) and isinstance(scripts, list) for code, scripts in group.items()):
            raise ValueError(f"close_languages: {name} is {group!r}; expected {such}")
        if unknown := [str(script) for scripts in group.values() for script in scripts if script not in SCRIPTS]:
            raise ValueError(f"close_languages: {name} has the unknown script {unknown[0]}; the known ones are {', '.join(SCRIPTS)}")
    return {name: group for name, group in groups.items() if group}


def _rule(name: str, row: Any) -> Filter:
    return _own_filter(name, row) if isinstance(row, dict) and "filter" in row else _threshold(name, row)


def _own_filter(name: str, row: Mapping[str, Any]) -> Filter:
    """A filter of a class of `document_rules`, whose fields the row sets."""
    where, known = f"rules: {name}", filter_classes()
    if row["filter"] not in known:
        raise ValueError(f"{where} asks for the filter {row['filter']!r}; the known ones are {', '.join(known)}")
    kinds = {field.name: field.type for field in fields(known[row["filter"]]) if field.name != "name"}
    setting_values.mapping(where, row, {"filter", *kinds})
    given = {key: _READERS[str(kinds[key])](f"{where}: {key}", value) for key, value in row.items() if key != "filter"}
    return known[row["filter"]](name, **given)


# Of a value of a filter's field, by the type that is written there.
_READERS: dict[str, Callable[[str, Any], Any]] = {
    "float": setting_values.number,
    "int": setting_values.count,
    "bool": setting_values.switch,
    "str": setting_values.text,
    "tuple[str, ...]": setting_values.texts,
}


def _threshold(name: str, row: Any, *, known: Set[str] = _RULE_KEYS) -> Threshold:
    if not isinstance(row, dict) or set(row) - known or "measure" not in row:
        more = ", from_words: NUMBER, from_lines: NUMBER, unless: {measure: NAME, max or min: NUMBER}" if known is _RULE_KEYS else ""
        raise ValueError(f"rules: {name} is not of the form {{measure: NAME, max or min: NUMBER{more}}}, or false")
    if row["measure"] not in MEASURES:
        raise ValueError(f"rules: {name} asks for {row['measure']!r}; the known measures are {', '.join(MEASURES)}")
    limits = {side: setting_values.number(f"rules: {name}: {side}", row[side]) for side in ("max", "min") if side in row}
    if not limits:
        raise ValueError(f"rules: {name} has neither max nor min; expected one of them")
    setting_values.require_in_order(f"rules: {name}", limits.get("min"), limits.get("max"))
    least = {key: int(setting_values.number(f"rules: {name}: {key}", row.get(key, 0), 0) or 0) for key in ("from_words", "from_lines")}
    return Threshold(
        name,
        row["measure"],
        limits.get("max"),
        limits.get("min"),
        **least,
        unless=_threshold(f"{name}: unless", row["unless"], known=_LIMIT_KEYS) if row.get("unless") else None,
        needs_stop_words=setting_values.switch(f"rules: {name}: needs_stop_words", row.get("needs_stop_words")),
    )


def _repeated_lines(given: Any) -> dict[str, float] | None:
    if not given:
        return None
    if not isinstance(given, dict) or set(given) != _REPEATED_KEYS:
        raise ValueError(f"repeated_lines is {given!r}; expected {{{', '.join(sorted(_REPEATED_KEYS))}}}, or false")
    if off := [key for key, value in given.items() if value is False or value is None]:
        raise ValueError(f"repeated_lines: {off[0]} is {given[off[0]]!r}; expected a number from 0, or false for all of repeated_lines")
    return {key: setting_values.number(f"repeated_lines: {key}", value, 0) or 0 for key, value in given.items()}


def _phrases(given: Mapping[str, Any]) -> tuple[Phrases, ...]:
    found = [Phrases(name, setting_values.texts(f"phrases: {name}", phrases)) for name, phrases in given.items()]
    return tuple(rule for rule in found if rule.phrases)


def _scores(given: Mapping[str, Any]) -> tuple[ScoreRule, ...]:
    rules = tuple(score_rule(name, row) for name, row in given.items() if row is not False)
    by_key: dict[str, str] = {}
    for rule in rules:
        if rule.written_as and (other := by_key.setdefault(rule.written_as, rule.name)) != rule.name:
            raise ValueError(f"scores: {other} and {rule.name} are both written as {rule.written_as!r}; give each its own name")
    return rules


def _blocked_urls(given: Any) -> dict[str, Any] | None:
    if not given:
        return None
    if not isinstance(given, dict) or set(given) != {"key", "files"} or not isinstance(given["files"], list):
        raise ValueError(f"blocked_urls is {given!r}; expected {{key: KEY, files: [FILE, ...]}}, or false")
    setting_values.text("blocked_urls: key", given["key"])
    for file in given["files"]:
        path = Path(setting_values.text("blocked_urls: files", file))
        if not path.is_file():
            raise ValueError(f"blocked_urls names the file {file}, which {'is a folder' if path.is_dir() else 'does not exist'}")
    return given


def _laid_over(below: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Mappings joined key by key; lists and other values of the upper one stand for those below."""
    result = dict(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = _laid_over(result[key], value) if both else deepcopy(value)
    return result
