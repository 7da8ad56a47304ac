"""The stages of a project: the pipeline that its file stands for, every command as it would be typed."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from common.cli import ROOT
from conversion.embeddings import METHODS
from recipes.projects.project import MATERIAL, SMOLLM2, TINY, LoadedProject, load_project
from recipes.projects.schedule import chosen_recipe, exported_steps
from recipes.projects.schema import BEST, TINY_SIZE, Text, Vocabulary
from recipes.projects.smollm2 import FILE_NAME
from recipes.projects.tiny import ENCODERS, HELPER, TINY_VOCABULARY, tiny_project
from recipes.rules.schema import MASKED, Recipe
from recipes.runs.run_dir import CHECKPOINTS_NAME

_REPLAY = 0.1
SOURCE = "source"
_SHAPE = "--num-layers {} --hidden-size {} --num-attention-heads 4 --ffn-size {} --max-positions 128"
_MODEL = ("conversion.transfer", "conversion.transfer_compare", "eval.harness", "eval.generate")  # a GPU makes these faster
_CPU_BYTES = 20_000  # that a CPU compares methods on: minutes for a small model
_LIGHT = ("conversion.hf_to_nemo", "conversion.nemo_to_hf", "data_prep.tokenizer_report", "eval.learning_curves", "eval.report")


@dataclass(frozen=True)
class Variant:
    """One model that is trained: a vocabulary, and a method where it has new tokens.

    Attributes:
        label: what tables call it, and its folder.
        vocabulary: its name in the file.
        tokenizer: reference to the tokenizer that was made for it; None where the transfer makes it.
    """

    label: str
    vocabulary: str
    rule: Vocabulary
    method: str | None
    tokenizer: str | None

    @property
    def suffix(self) -> str:
        """For the names of its stages."""
        return self.label.replace("-", "_")


@dataclass
class _Stages:
    """The pipeline while it is put together."""

    loaded: LoadedProject
    stages: dict[str, dict[str, Any]] = field(default_factory=dict)
    paths: list[Path] = field(default_factory=list)
    is_masked: bool = False  # encoders have no curves, but a table of the text that they fill in

    def add(self, name: str, command: str, output: str | None = None, **more: Any) -> str:
        """One stage; gives the reference to its output."""
        module = command.partition(" ")[0]
        resources = "model" if module in _MODEL else "light" if module in _LIGHT else "cpu"
        return self.put(name, {"command": command, **({"output": output} if output else {}), "resources": resources, **more})

    def put(self, name: str, stage: dict[str, Any]) -> str:
        """One stage as a pipeline has it, which may be there already.

        Raises:
            ValueError: if another one has that name.
        """
        if self.stages.setdefault(name, stage) != stage:
            raise ValueError(
                f"the project {self.loaded.file} would have two stages {name}, as names differ only in - and _; choose other names for its"
                " vocabularies, languages or texts"
            )
        return f"{{{name}}}"

    def path(self, written: str | Path) -> str:
        """A path of the project's file as a word of a command: relative to the checkout, where commands run, if it lies there."""
        path = self.loaded.path(str(written))
        if path.is_relative_to(ROOT):
            return shlex.quote(str(path.relative_to(ROOT)))
        if path not in self.paths:
            self.paths.append(path)
        return shlex.quote(str(path))


def expand_project(path: Path, *, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The pipeline of a project's file, as `recipes.pipelines.file.pipeline_from_mapping` takes it.

    Args:
        overrides: `key=value` in place of what the file says.

    Raises:
        ValueError: listing all that is wrong with the file.
    """
    return pipeline_of(load_project(path, overrides))


def pipeline_of(loaded: LoadedProject) -> dict[str, Any]:
    """The pipeline of a loaded project.

    Raises:
        ValueError: if its recipe cannot be composed.
    """
    if loaded.project.size == TINY_SIZE:
        loaded = tiny_project(loaded)
    built = _Stages(loaded)
    source = _add_source(built)
    texts, held_out = _add_texts(built, source)
    variants = _add_vocabularies(built, source, texts, held_out)
    models = [_add_training(built, source, texts, held_out, variant) for variant in variants]
    if not any(variant.rule.keep for variant in variants):
        models.insert(0, [(SOURCE, source)])
    _add_evaluation(built, source, held_out, variants, models)
    project = loaded.project
    machine, seconds = project.machine, round(3600 * project.machine.hours)
    limit = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    common = {"time_limit": limit, **({"memory_gib": machine.memory_gib} if machine.memory_gib else {})}
    is_gpu = machine.device == "gpu"
    return {
        "name": project.name,
        "work_dir": str(loaded.work_dir),
        "resources": {
            "cpu": common,
            "light": {**common, "cpus": 1},  # what one core does, so that others run beside it
            "model": {**common, **({"kind": "gpu", "gpus": 1} if is_gpu else {})},
            "training": {**common, "kind": "gpu"},
        },
        "paths": [str(path) for path in built.paths],
        "stages": built.stages,
    }


def _add_source(built: _Stages) -> str:
    """The model as a Hugging Face folder."""
    loaded, project = built.loaded, built.loaded.project
    if loaded.source_kind == TINY:
        return _add_tiny_model(built)
    if loaded.source_kind == SMOLLM2:
        file = built.add("model_file", f"recipes.projects.fetch --model {SMOLLM2}", "model_file")
        return built.add(SOURCE, f"conversion.from_gguf --input {file}/{FILE_NAME} --dtype float32", "model")
    if loaded.source_kind == "gguf":
        return built.add(SOURCE, f"conversion.from_gguf --input {built.path(project.source)} --dtype float32", "model")
    if loaded.source_kind == "hub":
        return built.add(SOURCE, f"recipes.projects.fetch --model {project.source}", "model")
    return built.path(project.source)


def _mask(built: _Stages) -> str:
    """A mask token for the tokenizers of a tiny encoder."""
    return " --mask-token" if built.loaded.project.tiny_family in ENCODERS and built.loaded.source_kind == TINY else ""


def _add_tiny_model(built: _Stages) -> str:
    """A tiny model of the source's language, trained here unless all is to be tiny."""
    project = built.loaded.project
    text = " ".join(_own_texts(built, project.source_language))
    tokenizer = built.add(
        f"{SOURCE}_tokenizer", f"data_prep.train_tokenizer --input {text} --vocab-size {TINY_VOCABULARY}{_mask(built)}", "model/tokenizer"
    )
    family = project.tiny_family
    groups = "" if family == "opt" or family in ENCODERS else " --num-key-value-heads 2"
    shape = f"--model-type {family}{groups} " + (_SHAPE.format(4, 128, 512) if project.size is None else _SHAPE.format(4, 64, 128))
    new = f"conversion.new_model {shape} --tokenizer {tokenizer} --seed {project.seed}"
    if project.size == TINY_SIZE:
        return built.add(SOURCE, new, "model/hf")
    untrained = built.add(f"{SOURCE}_untrained", new, "model/untrained")
    nemo = built.add(f"{SOURCE}_nemo", f"conversion.hf_to_nemo --input {untrained}", "model/nemo")
    data = built.add(f"{SOURCE}_data", f"data_prep.to_megatron --input {text} --tokenizer {tokenizer}", "model/data")
    overrides = f"model.checkpoint={nemo} data.train=[{data}] seed={project.seed}"
    run = _add_run(built, f"{SOURCE}_train", "demo_pretrain", overrides, "model/run")
    return built.add(SOURCE, f"conversion.nemo_to_hf --input {run}", "model/hf")


def _add_texts(built: _Stages, source: str) -> tuple[dict[str, str], dict[str, str]]:
    """Words for the training texts and for the held-out text of each language."""
    project = built.loaded.project
    held_out = {
        code: _read(built, code, language.heldout, "heldout")[0] for code, language in project.languages.items() if language.heldout
    }
    texts: dict[str, str] = {}
    others = _other_texts(built).values()
    for code, language in project.languages.items():
        if not (language.texts or language.corpora):
            continue
        words = _own_texts(built, code)
        name = code.replace("-", "_")
        separator = f" --document-separator {project.text.separator}" if project.text.separator else ""
        if language.corpora:
            folder = f" --folder {built.path(project.text.corpora_dir)}" if project.text.corpora_dir else ""
            known = " ".join(map(shlex.quote, language.corpora))
            words.append(
                built.add(f"collect_{name}", f"data_prep.collect --known {known}{folder}", f"text/{code}/collected", keep=False) + "/text"
            )
        if project.text.clean != "none":
            filters = "none" if project.text.clean == "light" else project.text.clean
            command = f"data_prep.clean --input {_named(code, words)} --filters {filters}{separator}"
            words = [built.add(f"clean_{name}", command, f"text/{code}/clean", keep=False) + "/text"]
        if code not in held_out or language.sentences:
            share = 0 if code in held_out else language.heldout_share
            sentences = f" --sentences {language.sentences}" if language.sentences else ""
            command = (
                f"data_prep.mixture --input {_named(code, words)} --tokenizer source={source} --validation-share {share:g}{sentences}"
                f" --seed {project.seed}{separator if project.text.clean == 'none' else ''}"
            )
            split = built.add(f"split_{name}", command, f"text/{code}/split")
            words = [f"{split}/train"]
            held_out.setdefault(code, f"{split}/validation")
        if project.text.deduplicate:
            command = f"data_prep.dedup --input {_named(code, words)} --against {' '.join((held_out[code], *others))}"
            words = [built.add(f"text_{name}", command, f"text/{code}/unique") + "/text"]
        texts[code] = " ".join(words)
    return texts, held_out


def _own_texts(built: _Stages, code: str) -> list[str]:
    return _read(built, code, built.loaded.project.languages[code].texts, "read", keep=False)


def _other_texts(built: _Stages) -> dict[str, str]:
    """Name and word of the texts beside those of the languages, that models are measured on."""
    return {name: _read(built, name, [written], "read")[0] for name, written in built.loaded.project.evaluation.texts.items()}


def _read(built: _Stages, name: str, written: Sequence[str], kind: str, **more: Any) -> list[str]:
    """Words for texts of the user; where they are under a key of their own, of a stage that puts them under the usual one."""
    text, words = built.loaded.project.text, [built.path(one) for one in written]
    if text.key == Text.key or not words:
        return words
    separator = f" --document-separator {text.separator}" if text.separator else ""
    command = f"data_prep.collect --input {_named(name, words)} --text-key {shlex.quote(text.key)}{separator}"
    return [built.add(f"{kind}_{name}".replace("-", "_"), command, f"text/{name}/{kind}", **more) + "/text"]


def _named(code: str, words: Sequence[str]) -> str:
    return f"{code}={words[0]}" + "".join(f" {word}" for word in words[1:])


def _add_vocabularies(built: _Stages, source: str, texts: Mapping[str, str], held_out: Mapping[str, str]) -> list[Variant]:
    """A variant for each vocabulary and method, with the stages that they share, and the source's own vocabulary at the end."""
    project = built.loaded.project
    vocabularies = dict(project.vocabulary)
    if project.training.lapt and not any(given.keep for given in vocabularies.values()):
        vocabularies[SOURCE] = Vocabulary(keep=True)
    variants: list[Variant] = []
    for name, given in vocabularies.items():
        end = "" if len(project.vocabulary) == 1 else f"_{name.replace('-', '_')}"
        tokenizer = None
        if given.tokenizer:
            tokenizer = built.path(given.tokenizer)
        elif given.replace:
            learned_from = _all(texts, project.source_language, given.languages)
            command = f"data_prep.train_tokenizer --input {learned_from} --model {given.kind} --vocab-size {given.replace}{_mask(built)}"
            tokenizer = built.add(f"tokenizer{end}", command, f"tokenizer{end}")
        if HELPER in project.transfer.words and "helper" not in built.stages:
            built.add("helper", f"conversion.new_model {_SHAPE.format(2, 32, 64)} --tokenizer {tokenizer} --seed 1", "helper")
        methods: Sequence[str | None] = [None] if given.keep else given.methods or project.transfer.methods
        for method in methods:
            label = name if method is None or (len(methods) == 1 and len(project.vocabulary) > 1) else method
            if method is not None and any(other.label == label for other in variants):
                label = f"{name}-{method}"
            variant = Variant(SOURCE if given.keep else label, name, given, method, tokenizer)
            if method == BEST:
                first = next(code for code in project.languages if code != project.source_language)
                command = (
                    f"conversion.transfer_compare --source {source} {_transfer_words(built, texts, variant, project.transfer.candidates)}"
                )
                command += f" --methods {' '.join(project.transfer.candidates)} --heldout {first}={held_out[first]}"
                command += f" --heldout-bytes {_CPU_BYTES}" if project.machine.device == "cpu" else ""
                built.add(f"compare{end}", command, f"comparison{end}")
                variant = replace(variant, method=f"{{compare{end}}}")
            variants.append(variant)
    return variants


def _all(texts: Mapping[str, str], source_language: str, languages: Sequence[str]) -> str:
    """The texts of some languages, by default all, the new ones first."""
    ordered = sorted(texts.items(), key=lambda item: item[0] == source_language)
    return " ".join(text for code, text in ordered if code in languages or not languages)


def _new(texts: Mapping[str, str], source_language: str) -> str:
    return " ".join(text for code, text in texts.items() if code != source_language)


def _material_for(built: _Stages, methods: Sequence[str]) -> list[str]:
    """The options without the material that none of some methods reads, which would be refused; paths as all paths of the file."""
    used = {flag for need, flag in MATERIAL.items() if any(need in METHODS[method].uses for method in methods)}
    words: list[str] = []
    flag = ""
    for word in built.loaded.project.transfer.words:
        is_flag = word.startswith("--")
        flag = word if is_flag else flag
        is_path = flag in MATERIAL.values() and not is_flag
        if flag in used or flag not in MATERIAL.values():
            words.append(word if word == HELPER else built.path(word) if is_path else shlex.quote(word))
    return words


def _transfer_words(built: _Stages, texts: Mapping[str, str], variant: Variant, methods: Sequence[str]) -> str:
    """What a transfer and a comparison of transfers have in common."""
    project, given = built.loaded.project, variant.rule
    if given.keep:
        return "--vocabulary keep"
    words = [f"--tokenizer {variant.tokenizer}"] if variant.tokenizer else []
    for strategy, number in (("expand", given.expand), ("swap", given.swap)):
        words += [f"--vocabulary {strategy} --new-tokens {number}"] if number else []
    words += [f"--swap-script {' '.join(given.swap_scripts)}"] if given.swap_scripts else []
    adds = given.expand or given.swap
    if adds and (source_text := texts.get(project.source_language)):
        words.append(f"--source-text {source_text}")
    if adds or any("text" in METHODS[method].uses for method in methods):
        words.append(f"--text {_new(texts, project.source_language)} --document-separator {project.text.separator or 'line'}")
    if given.output_layer:
        words.append(f"--output-layer {given.output_layer}")
    return " ".join([*words, *_material_for(built, methods)])


def _add_training(
    built: _Stages, source: str, texts: Mapping[str, str], held_out: Mapping[str, str], variant: Variant
) -> list[tuple[str, str]]:
    """Transfer, data, training and exports of a variant; name and reference of each model, in the order of steps."""
    project, label, end = built.loaded.project, variant.label, variant.suffix
    method = variant.method
    from_comparison = method is not None and method.startswith("{")
    methods = project.transfer.candidates if from_comparison else [method] if method else []
    how = f" --method-from {method}" if from_comparison else f" --method {method}" if method else ""
    command = f"conversion.transfer --source {source} --seed {project.seed}{how} {_transfer_words(built, texts, variant, methods)}"
    start = built.add(f"start_{end}", command, f"{label}/hf_0")
    nemo = built.add(
        f"nemo_{end}", f"conversion.hf_to_nemo --input {start}", f"{label}/nemo", **({} if project.machine.keep else {"keep": False})
    )
    data = _add_data(built, "data", texts, variant, start)
    name = (project.training.lapt_recipe if variant.rule.keep else None) or project.training.recipe
    if name.endswith((".yaml", ".yml")):
        name = built.path(name).strip("'")
    name, chosen, recipe = chosen_recipe(project, name)
    built.is_masked = recipe.objective == MASKED
    chosen += [*_weights(built, data, recipe), *_made_by(recipe, variant)]
    if recipe.run.validate_every_steps is not None:
        sets = _add_data(built, "heldout", held_out, variant, start)
        chosen.append(f"data.validation={{{','.join(f'{code}:{reference}' for code, reference in sets.items())}}}")
    steps = [] if recipe.schedule.epochs is not None else exported_steps(recipe, 1 if variant.rule.keep else project.training.checkpoints)
    if steps:
        chosen.append(f"run.checkpoint_every_steps={steps[0]}")
    words = [f"model.checkpoint={nemo}", f"data.train=[{','.join(data.values())}]", f"seed={project.seed}", *chosen]
    run = _add_run(built, f"train_{end}", name, " ".join(map(_word, words)), f"{label}/run")
    models = [(f"{label}-0", start)]
    if not steps:
        return [*models, (f"{label}-end", built.add(f"export_{end}", f"conversion.nemo_to_hf --input {run}", f"{label}/hf"))]
    for step in steps:
        command = f"conversion.nemo_to_hf --input {run}/{CHECKPOINTS_NAME}/step_{step:07}"
        models.append((f"{label}-{step}", built.add(f"export_{end}_{step}", command, f"{label}/hf_{step}")))
    return models


def _word(word: str) -> str:
    return word if "{" in word else f'"{word}"' if "'" in word else shlex.quote(word)


def _add_data(built: _Stages, kind: str, texts: Mapping[str, str], variant: Variant, start: str) -> dict[str, str]:
    """Reference to the data set of each language that is trained on, or that a training is validated on; variants with one tokenizer share it."""
    project = built.loaded.project
    separator = f" --document-separator {project.text.separator}" if project.text.separator and project.text.clean == "none" else ""
    place = variant.vocabulary if variant.tokenizer else variant.label
    found = {}
    for code, text in texts.items():
        if code == project.source_language and not _replay(built):
            continue
        name = f"{kind}_{place}_{code}".replace("-", "_")
        if name not in built.stages:
            command = f"data_prep.to_megatron --input {text} --tokenizer {variant.tokenizer or start}{separator}"
            built.add(name, command, f"{kind}/{place}/{code}")
        found[code] = f"{{{name}}}"
    return found


def _replay(built: _Stages) -> float:
    project = built.loaded.project
    source = project.languages.get(project.source_language)
    if project.training.replay is not None:
        return project.training.replay
    return _REPLAY if source and (source.texts or source.corpora) else 0.0


def _weights(built: _Stages, data: Mapping[str, str], recipe: Recipe) -> list[str]:
    """The share of the samples of each language: none where there is one, the recipe's own where it speaks of languages or of passes."""
    project, replay = built.loaded.project, _replay(built)
    if recipe.data.shares or recipe.data.sampling_exponent is not None:
        return [f"data.languages=[{','.join(data)}]"]
    without = ["data.blend=null"] if recipe.data.blend is not None else []  # which names data sets of others
    if len(data) == 1 or (recipe.schedule.epochs is not None and project.training.replay is None):
        return without
    shares = {code: project.languages[code].share for code in data if code != project.source_language}
    weights = [replay if code == project.source_language else (1 - replay) * shares[code] / sum(shares.values()) for code in data]
    return [*without, f"data.weights=[{','.join(f'{weight:.6g}' for weight in weights)}]"]


def _add_run(built: _Stages, name: str, recipe: str, overrides: str, output: str) -> str:
    machine = built.loaded.project.machine
    stage = {
        "train": {"recipe": recipe, "overrides": overrides, "links": machine.links},
        "output": output,
        "resources": "training",
        **({} if machine.keep else {"keep": False}),
    }
    return built.put(name, stage)


def _made_by(recipe: Recipe, variant: Variant) -> list[str]:
    """What a published recipe asks of its checkpoint, as this variant has it."""
    model = recipe.model
    method = None if variant.method is None or variant.method.startswith("{") else variant.method
    expected = {"method": method, "output_layer": variant.rule.output_layer, "vocab_size": variant.rule.replace}
    asked = {key: value for key, value in expected.items() if getattr(model, key) is not None and getattr(model, key) != value}
    return [f"model.{key}={'null' if value is None else value}" for key, value in asked.items()]


def _add_evaluation(
    built: _Stages, source: str, held_out: Mapping[str, str], variants: Sequence[Variant], models: Sequence[Sequence[tuple[str, str]]]
) -> None:
    """All models measured alike; of each variant the first and the last continue prompts."""
    project, evaluation = built.loaded.project, built.loaded.project.evaluation
    languages = " and ".join(code for code in project.languages if code != project.source_language)
    title = shlex.quote(project.title or f"{languages} for {Path(project.source).name}")
    new = [variant for variant in variants if not variant.rule.keep]
    if evaluation.verify and new:
        _add_verification(built, new[-1])
    texts = " ".join(f"{name}={word}" for name, word in sorted(held_out.items(), key=lambda item: item[0] == project.source_language))
    texts += "".join(f" {name}={word}" for name, word in _other_texts(built).items())
    named = " ".join(f"{name}={model}" for of_variant in models for name, model in of_variant)
    tasks = f" --tasks {' '.join(evaluation.tasks)}" if evaluation.tasks else ""
    data = f" --data {built.path(evaluation.data)}" if evaluation.data else ""
    options = f" {evaluation.options}" if evaluation.options else ""
    results = built.add("evaluate", f"eval.harness --model {named} --text {texts}{tasks}{data}{options}", "results")
    shown = ""
    if evaluation.prompts:
        ends = [f"{name}={model}" for of_variant in models for name, model in dict.fromkeys((of_variant[0], of_variant[-1]))]
        command = f"eval.generate --model {' '.join(ends)} --prompts {built.path(evaluation.prompts)} --settings lowres"
        command += f" --max-new-tokens {evaluation.new_tokens} --repeats 1"
        shown = f" --continuations {built.add('continuations', command, 'continuations')}"
    if not built.is_masked:
        built.add("report", f"eval.learning_curves --results {results}{shown} --title {title}", "report")
    baseline = next(of_variant[-1][0] for of_variant in models if of_variant[0][0] in (SOURCE, f"{SOURCE}-0"))
    built.add("intervals", f"eval.report --results {results} --baseline {baseline} --title {title}", "intervals")
    if new:
        tokenizers = {variant.vocabulary: variant.tokenizer or f"{{start_{variant.suffix}}}" for variant in new}
        compared = " ".join(f"{name}={word}" for name, word in tokenizers.items())
        built.add(
            "vocabularies", f"data_prep.tokenizer_report --tokenizer source={source} {compared} --input {_inputs(held_out)}", "vocabularies"
        )


def _inputs(held_out: Mapping[str, str]) -> str:
    return " ".join(f"{code}={word}" for code, word in held_out.items())


def _add_verification(built: _Stages, variant: Variant) -> None:
    """One of all exports, which the same commands made; the last of a variant with new tokens."""
    exports = [name for name in built.stages if name.startswith(f"export_{variant.suffix}_")]
    if exports:
        checkpoint = built.stages[exports[-1]]["command"].rpartition(" ")[2]
        built.add("verify", f"conversion.verify {{{exports[-1]}}} {checkpoint}")
