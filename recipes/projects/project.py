"""A project as its YAML file says it, checked as a whole: all that is wrong is said at once, with the key to change."""

from __future__ import annotations

import difflib
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import chain, islice
from pathlib import Path
from typing import Any

from common.cli import ROOT
from common.plain_files import literal_loader, parse_yaml, read_json, read_text
from conversion.embeddings import METHODS
from conversion.families import family_of
from conversion.gguf.architectures import architecture_of
from conversion.gguf.file import GGUFFile
from data_prep.reading.corpora import text_files
from data_prep.reading.documents import SUFFIXES_IN_WORDS, is_text_file, read_documents
from data_prep.reading.languages import LanguageCode, is_language, language_code
from data_prep.reading.sources import KNOWN_TABLE, table_rows
from data_prep.tokenizers.swapping import of_scripts
from recipes.projects.schema import BEST, CLEANING, DEVICES, PROCEDURES, SIZES, TOKENIZER_KINDS, Language, Project, Vocabulary
from recipes.rules.schema import build_from_mapping, raise_all

SMOLLM2, TINY = "smollm2", "tiny"
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_NAME = re.compile(r"[^\W\d][\w-]*")
_UNNAMED = "vocabulary"
MATERIAL = {
    "helper": "--helper",
    "encoder": "--encoder",
    "word_vectors": "--vectors",
    "source_word_vectors": "--source-vectors",
    "dictionary": "--dictionary",
    "parallel": "--parallel",
}
_TAKEN = (
    "comparison",
    "continuations",
    "data",
    "heldout",
    "helper",
    "intervals",
    "logs",
    "model",
    "report",
    "results",
    "source",
    "stages",
    "text",
)
_TEXT_KINDS = ("texts", "heldout")
_SEPARATORS = ("line", "blank-line", "file")
_LOOKED_AT = 1000  # documents of a text: whether it can be read shows at its beginning
_MOST_NULS = 0.01  # of the characters of a text
_MOST_TOKENS = 1_000_000  # of a vocabulary; the largest published ones have some 250,000, XLM-V as many as this
_ASKS_FOR_KEY = "name the key of the text with --text-key"
_WAYS_HERE = {  # how what readers ask for is said here
    "say with --document-separator": "say with text.separator",
    _ASKS_FOR_KEY: "name the key of the text as text.key",
}


@dataclass(frozen=True)
class LoadedProject:
    """A project and where its file lies, to which its paths are relative."""

    project: Project
    file: Path

    def path(self, written: str) -> Path:
        """A path of the file, absolute."""
        return Path(os.path.abspath(self.file.parent / Path(written).expanduser()))

    @property
    def work_dir(self) -> Path:
        """The folder for all outputs, absolute."""
        return self.path(self.project.machine.work_dir or f"{self.project.name}_output")

    @property
    def source_kind(self) -> str:
        """What `source` names: smollm2, tiny, gguf, folder or hub."""
        source = self.project.source
        if source in (SMOLLM2, TINY):
            return source
        if self.path(source).exists() or not _HUB_NAME.fullmatch(source):
            return "gguf" if source.endswith(".gguf") else "folder"
        return "hub"


def load_project(path: Path, overrides: Sequence[str] = ()) -> LoadedProject:
    """The project of a YAML file.

    Args:
        overrides: `key=value` in place of what the file says, such as `machine.work_dir=/scratch/sl` or `training.steps=20`.

    Raises:
        ValueError: listing all that is wrong with it.
    """
    subject = f"the project {path}"
    if not path.is_file():
        raise ValueError(f"{subject} does not exist; `scion init` writes one")
    content = parse_yaml(read_text(path), subject=subject, loader=literal_loader())
    if not isinstance(content, dict):
        raise ValueError(f"{subject} holds no keys; expected at least source and languages, as `scion init` writes them")
    given = {override.partition("=")[0] for override in overrides}
    for key, other in (("steps", "tokens"), ("tokens", "steps")):  # the budget of the command line in place of the file's
        if f"training.{key}" in given and isinstance(training := content.get("training"), dict):
            training.pop(other, None)
    for override in overrides:
        _set(content, override)
    try:
        project = build_from_mapping(Project, {"name": _name_of(path), **_in_full(content)}, subject=subject)
    except ValueError as error:
        raise ValueError(str(error).replace(f"vocabulary.{_UNNAMED}", "vocabulary")) from None
    loaded = LoadedProject(project, path.absolute())
    raise_all(list(_problems(loaded)), subject=subject)
    return loaded


def _name_of(file: Path) -> str:
    """What a project without a name is called: as its file, with _ for what no name has."""
    name = re.sub(r"[^\w-]+", "_", file.stem)
    return name if _NAME.fullmatch(name) else f"_{name}"


def _set(content: dict[str, Any], override: str) -> None:
    key, equals, value = override.partition("=")
    *sections, name = key.split(".")
    if not equals or not all((*sections, name)):
        raise ValueError(f"the override {override!r} is not of the form key=value, for example training.steps=100")
    for section in sections:
        content = content.setdefault(section, {})
        if not isinstance(content, dict):
            raise ValueError(
                f"the override {override!r} sets a key within {section}, which the file gives as {content!r}; set {section} itself"
            )
    parsed = parse_yaml(value, subject=f"the override {override!r}", loader=literal_loader())
    # A path on the command line is relative to where that is typed, one in the file to the file.
    content[name] = os.path.abspath(Path(value).expanduser()) if value and key == "machine.work_dir" else parsed


def _in_full(content: Mapping[str, Any]) -> dict[str, Any]:
    """The file's short forms written out."""
    full = dict(content)
    if isinstance(languages := full.get("languages"), Mapping):
        full["languages"] = {code: {"texts": given} if isinstance(given, str | list) else given for code, given in languages.items()}
    if isinstance(full.get("transfer"), str | list):
        full["transfer"] = {"methods": full["transfer"]}
    vocabulary = full.get("vocabulary")
    if vocabulary == "keep":
        vocabulary = {"keep": True}
    if isinstance(vocabulary, Mapping) and vocabulary:
        known = {field.name for field in fields(Vocabulary)}
        named = all(isinstance(given, Mapping) for given in vocabulary.values()) and not known & vocabulary.keys()
        full["vocabulary"] = dict(vocabulary) if named else {_UNNAMED: dict(vocabulary)}
    elif vocabulary is None:
        full["vocabulary"] = {_UNNAMED: {"expand": 2000}}
    else:
        raise ValueError(f"vocabulary is {vocabulary!r}; expected keep, or for example {{expand: 2000}}")
    return full


def _problems(loaded: LoadedProject) -> Iterator[str]:
    project = loaded.project
    if not _NAME.fullmatch(project.name):
        yield f"name is {project.name!r}; expected letters, digits, - and _, for example slovene"
    unreadable = list(_quoting_problems(project))
    yield from unreadable
    if unreadable:
        return
    yield from _choice_problems(project)
    yield from _number_problems(project)
    yield from _language_problems(loaded)
    yield from _vocabulary_problems(loaded)
    yield from _path_problems(loaded)
    yield from _work_dir_problems(loaded)


def _quoting_problems(project: Project) -> Iterator[str]:
    for key, options in (("transfer.options", project.transfer.options), ("evaluation.options", project.evaluation.options)):
        try:
            shlex.split(options)
        except ValueError:
            yield f"{key} is {options!r}, in which a quotation mark or a backslash is left open; quote as in a shell"


def _choice_problems(project: Project) -> Iterator[str]:
    choices: list[tuple[str, str | None, Sequence[str]]] = [
        ("text.clean", project.text.clean, CLEANING),
        ("text.separator", project.text.separator, _SEPARATORS),
        ("training.procedure", project.training.procedure, PROCEDURES),
        ("machine.device", project.machine.device, DEVICES),
        ("size", project.size, SIZES),
        *((f"{_vocabulary_key(name)}.kind", given.kind, TOKENIZER_KINDS) for name, given in project.vocabulary.items()),
    ]
    for key, value, known in choices:
        if value is not None and value not in known:
            yield f"{key} is {value!r}; expected {', '.join(known)}"


def _number_problems(project: Project) -> Iterator[str]:
    training, machine = project.training, project.machine
    sizes = {
        f"{_vocabulary_key(name)}.{key}": getattr(given, key)
        for name, given in project.vocabulary.items()
        for key in ("replace", "expand", "swap")
    }
    positive: dict[str, float | None] = {
        "training.tokens": training.tokens,
        "training.steps": training.steps,
        "training.learning_rate": training.learning_rate,
        "training.sequence_length": training.sequence_length,
        "training.batch": training.batch,
        "training.checkpoints": training.checkpoints,
        "evaluation.new_tokens": project.evaluation.new_tokens,
        "machine.processes": machine.processes,
        "machine.memory_gib": machine.memory_gib,
        "machine.hours": machine.hours,
        "machine.links": machine.links,
        **{f"languages.{code}.{key}": getattr(given, key) for code, given in project.languages.items() for key in ("share", "sentences")},
        **sizes,
    }
    for key, value in positive.items():
        if value is not None and not 0 < value < float("inf"):
            yield f"{key} is {value:g}; expected more than 0"
        elif value is not None and key in sizes and value > _MOST_TOKENS:
            yield f"{key} is {value:,}; expected at most {_MOST_TOKENS:,} tokens, more than any published vocabulary has"
    if 0 < 60 * machine.hours < 1:
        yield f"machine.hours is {machine.hours:g}, less than a minute; expected the limit of a job, such as 12"
    if training.tokens is not None and training.steps is not None:
        yield "training.tokens and training.steps both say how long to train; give one of them"
    if training.replay is not None and not 0 <= training.replay < 1:
        yield f"training.replay is {training.replay:g}; expected a share from 0 to less than 1, such as 0.1"
    for code, language in project.languages.items():
        if language.heldout and language.heldout_share != Language.heldout_share:
            yield f"languages.{code}.heldout_share has no effect, as heldout names a file; leave one of them out"
        if not 0 < language.heldout_share < 0.5:
            yield f"languages.{code}.heldout_share is {language.heldout_share:g}; expected a share above 0 and below 0.5, such as 0.01"


def _work_dir_problems(loaded: LoadedProject) -> Iterator[str]:
    work_dir = loaded.work_dir
    if ROOT.is_relative_to(work_dir):
        yield f"machine.work_dir is {work_dir}, the checkout or a parent of it; give a separate folder"
    there = next(path for path in (work_dir, *work_dir.parents) if path.exists())
    if not there.is_dir():
        yield f"machine.work_dir is {work_dir}, but {there} is a file; give a folder of its own"
    if wrong := [character for character in "[],'\"\\" if character in str(work_dir)]:
        yield f"machine.work_dir is {work_dir}, with the character {wrong[0]}, which a recipe reads as more than text; give another folder"
    for code, language in loaded.project.languages.items() if loaded.project.size is None else ():
        for written in language.texts:
            if work_dir.is_relative_to(loaded.path(written)):
                yield (
                    f"machine.work_dir is {work_dir}, which lies in {written} of languages.{code}.texts, so that outputs would be read as text;"
                    " give another folder"
                )


def _language_problems(loaded: LoadedProject) -> Iterator[str]:
    project = loaded.project
    corpora = table_rows(KNOWN_TABLE)
    codes: dict[LanguageCode, str] = {}
    for code, language in project.languages.items():
        if not is_language(code):
            yield f"languages.{code} names no language; expected a code of ISO 639, such as sl"
        if (first := codes.setdefault(language_code(code), code)) != code:
            yield f"languages.{first} and languages.{code} are one language; give its texts under one code"
        if language_code(code) == language_code(project.source_language) and code != project.source_language:
            yield f"languages.{code} is the source's language, which source_language calls {project.source_language}; give both one code"
        if not (language.texts or language.corpora) and (not language.heldout or code != project.source_language):
            yield f"languages.{code} has neither texts nor corpora; give files or folders with text"
        if len(language.heldout) > 1:
            yield f"languages.{code}.heldout names {len(language.heldout)} files; expected one file or folder"
        for name in language.corpora:
            if (known := re.split("[:=]", name)[0]) not in corpora:
                near = difflib.get_close_matches(known, corpora, n=1)
                meant = f"did you mean {near[0]}? " if near else ""
                yield f"languages.{code}.corpora names {known}; {meant}`data_prep.collect --list` shows the known ones"
    if not any(code != project.source_language for code in project.languages):
        yield f"languages has no new language; expected one beside {project.source_language}, the source's (source_language)"
    source = project.languages.get(project.source_language)
    if project.training.replay and not (source and (source.texts or source.corpora)):
        yield (
            f"training.replay is {project.training.replay:g}, but languages.{project.source_language} has no texts to replay; give some, or"
            " training.replay: 0"
        )
    if loaded.source_kind == TINY and not (source and source.texts):
        yield f"source is tiny, a model that is made here, but languages.{project.source_language} has no texts to train it on; give some"
    if wrong := [name for name in project.evaluation.texts if not re.fullmatch(r"\w[\w-]*", name)]:
        yield f"evaluation.texts has the name {wrong[0]!r}; expected letters, digits, - and _"
    if clashing := sorted(project.evaluation.texts.keys() & project.languages.keys()):
        yield f"evaluation.texts.{clashing[0]} has the name of a language, whose held-out text is evaluated anyway; choose another name"


def _vocabulary_problems(loaded: LoadedProject) -> Iterator[str]:
    project = loaded.project
    for name, given in project.vocabulary.items():
        key = _vocabulary_key(name)
        if not _NAME.fullmatch(name):
            yield f"{key} is not a name; expected letters, digits, - and _"
        if name in _TAKEN:
            yield f"{key} has the name of an output folder; choose another name than {', '.join(_TAKEN)}"
        chosen = [kind for kind in ("replace", "expand", "swap", "keep", "tokenizer") if getattr(given, kind)]
        if len(chosen) != 1:
            yield f"{key} has {' and '.join(chosen) or 'none of its kinds'}; expected one of replace, expand, swap, keep and tokenizer"
        try:
            of_scripts(given.swap_scripts or ("Latin",))
        except ValueError as error:
            yield f"{key}.swap_scripts: {error}"
        if given.swap_scripts and not given.swap:
            yield f"{key}.swap_scripts selects the tokens that swap removes, but there is no swap; leave it out"
        if unknown := [code for code in given.languages if code not in project.languages]:
            yield f"{key}.languages names {unknown[0]}; the languages are {', '.join(project.languages)}"
        if given.keep and given.methods:
            yield f"{key}.methods selects how new tokens are initialised, but keep adds none; leave it out"
        for method in given.methods:
            yield from _method_problems(project, f"{key}.methods", method)
    if not project.transfer.methods and not all(given.keep or given.methods for given in project.vocabulary.values()):
        yield "transfer.methods is empty; expected methods, such as mean, or best"
    for method in project.transfer.methods:
        yield from _method_problems(project, "transfer.methods", method)
    for method in project.transfer.candidates if _compares(project) else ():
        yield from _method_problems(project, "transfer.candidates", method, also=())


def _vocabulary_key(name: str) -> str:
    """As the file has it: one vocabulary alone has no name there."""
    return "vocabulary" if name == _UNNAMED else f"vocabulary.{name}"


def _compares(project: Project) -> bool:
    return any(BEST in (given.methods or project.transfer.methods) for given in project.vocabulary.values() if not given.keep)


def _method_problems(project: Project, key: str, method: str, also: Sequence[str] = (BEST,)) -> Iterator[str]:
    if method in also:
        return
    if method not in METHODS:
        near = difflib.get_close_matches(method, [*METHODS, *also], n=1, cutoff=0.0)[0]
        yield f"{key} names {method}; did you mean {near}? The methods are {', '.join((*also, *METHODS))}"
        return
    for need in METHODS[method].needs:
        if (option := MATERIAL.get(need)) and option not in project.transfer.words:
            yield f"{key} names {method}, which needs {option}; give it in transfer.options, for example {option} PATH"


def _path_problems(loaded: LoadedProject) -> Iterator[str]:
    project = loaded.project
    if project.size is None:  # in which nothing of these is read
        seen: dict[Path, str] = {}
        for code, language in project.languages.items():
            for kind in _TEXT_KINDS:
                for written in getattr(language, kind):
                    key, path = f"languages.{code}.{kind}", loaded.path(written)
                    if path in seen:
                        yield f"{key} names {written}, which {seen[path]} has already; give each text once"
                    else:
                        yield from _text_problems(loaded, key, written)
                    seen.setdefault(path, key)
        for name, written in project.evaluation.texts.items():
            yield from _text_problems(loaded, f"evaluation.texts.{name}", written)
        yield from _overlap_problems(loaded)
        if (prompts := project.evaluation.prompts) is not None and loaded.path(prompts).is_file():
            yield from _content_problems(loaded, "evaluation.prompts", loaded.path(prompts), "prompt")
        yield from _source_problems(loaded)
    words = project.transfer.words
    material = [("transfer.options", path) for flag, path in zip(words, words[1:]) if flag in MATERIAL.values()]
    single = [
        *material,
        ("text.corpora_dir", project.text.corpora_dir),
        ("evaluation.data", project.evaluation.data),
        ("evaluation.prompts", project.evaluation.prompts),
        *((f"{_vocabulary_key(name)}.tokenizer", given.tokenizer) for name, given in project.vocabulary.items()),
    ]
    for key, given in single:
        if given is not None and project.size is None and not loaded.path(given).exists():
            yield f"{key} is {given}, which does not exist ({loaded.path(given)})"
    recipe = project.training.recipe
    if recipe.endswith((".yaml", ".yml")) and not loaded.path(recipe).is_file():
        yield f"training.recipe is {recipe}, which does not exist ({loaded.path(recipe)}); `scion init --recipe {recipe}` writes one"
    written_paths = [str(loaded.file.parent), str(loaded.work_dir), project.source, *(given for _, given in single if given)]
    written_paths += [path for language in project.languages.values() for path in (*language.texts, *language.heldout)]
    if wrong := [path for path in written_paths if "{" in path or "}" in path]:
        yield f"the path {wrong[0]} contains braces, which a pipeline reads as a reference; rename it"


def _text_problems(loaded: LoadedProject, key: str, written: str) -> Iterator[str]:
    path = loaded.path(written)
    if not path.exists():
        yield f"{key} names {written}, which does not exist ({path})"
    elif path.is_file() and not is_text_file(path):
        yield f"{key} names {written}, which is of an unknown kind; expected a folder or a name ending in {SUFFIXES_IN_WORDS}"
    else:
        yield from _content_problems(loaded, key, path)


def _overlap_problems(loaded: LoadedProject) -> Iterator[str]:
    """Files that two texts of the project share, by a folder or a link: one would be trained on twice, or be held out from nothing."""
    project = loaded.project
    given = [
        (f"languages.{code}.{kind}", one)
        for code, given in project.languages.items()
        for kind in _TEXT_KINDS
        for one in getattr(given, kind)
    ]
    given += [(f"evaluation.texts.{name}", one) for name, one in project.evaluation.texts.items()]
    seen: dict[Path, tuple[str, str]] = {}
    for key, written in given:
        path = loaded.path(written)
        for file in path.rglob("*") if path.is_dir() else [path]:
            other, its = seen.setdefault(file.resolve(), (key, written)) if file.is_file() else (key, written)
            is_said = key.startswith("languages.") and loaded.path(its) == path  # of the very same words, by `_path_problems`
            if (other, its) != (key, written) and not is_said and "texts" in (key.rpartition(".")[2], other.rpartition(".")[2]):
                yield f"{key} names {written} and {other} names {its}, which both have {file.name}; give each text once"
                break


def _content_problems(loaded: LoadedProject, key: str, path: Path, text_key: str | None = None) -> Iterator[str]:
    """What keeps the beginning of a text from being read, by default of one that has the project's key."""
    separator, advice = loaded.project.text.separator, _WAYS_HERE
    if text_key is not None:
        advice = {**advice, _ASKS_FOR_KEY: f"expected one under {text_key!r}"}
    try:
        files = text_files([path])
        documents = chain.from_iterable(
            read_documents(file, text_key=text_key or loaded.project.text.key, separator=separator) for file in files
        )
        texts = [document.text.strip() for document in islice(documents, _LOOKED_AT)]
        if not any(texts):
            yield f"{key} names {path}, which has no text; give files with text, or leave it out"
        elif sum(text.count("\0") for text in texts) > _MOST_NULS * sum(map(len, texts)):
            yield f"{key} names {path}, which is full of NUL characters, as a binary file is; give files with text"
    except ValueError as error:
        sentence = str(error)
        for asked, here in advice.items():
            sentence = sentence.replace(asked, here)
        yield f"{key}: {sentence}"


def _source_problems(loaded: LoadedProject) -> Iterator[str]:
    source, path = loaded.project.source, loaded.path(loaded.project.source)
    if loaded.source_kind == "gguf":
        if not path.is_file():
            yield f"source is {source}, which does not exist ({path})"
            return
        try:
            architecture_of(GGUFFile.open(path).metadata, str(path))
        except ValueError as error:
            yield f"source: {error}"
    elif loaded.source_kind == "folder":
        if not path.is_dir():
            yield f"source is {source}, and {path} does not exist; expected a folder, a GGUF file, OWNER/NAME of the hub, smollm2 or tiny"
        elif not (path / "config.json").is_file():
            yield f"source is {source!r}, which has no config.json; expected a Hugging Face folder"
        else:
            try:
                content = read_json(path / "config.json")
                if not isinstance(content, dict):
                    raise ValueError(f"{path}/config.json is not a JSON object; expected that of a Hugging Face folder")
                family_of(str(content.get("model_type", "")), source=str(path))
            except ValueError as error:
                yield f"source: {error}"
