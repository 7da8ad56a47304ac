"""The rules between a recipe's data section and its data sets: shares, epochs, tokenizers, lengths, ends of text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from common.artifacts import Manifest
from data_prep.megatron.index import PREFIX, TokenFile
from data_prep.tokenizers.files import load_tokenizer, tokenizer_files
from data_prep.tokenizers.frame import FRONT, OWN_FRONT, front_words, own_front_tokens
from recipes.numbers.steps import has_answers, largest_steps, samples_of, weights_of
from recipes.rules.schema import Recipe

if TYPE_CHECKING:
    from recipes.rules.inputs import RunInputs

_MANY_PASSES = 16
_LOOKED_AT = 100  # documents
_MANY_SENTENCES = 8


def blend_problems(recipe: Recipe, inputs: RunInputs) -> list[str]:
    """What is wrong with how much of each data set is seen; steps are not needed for it."""
    data, schedule = recipe.data, recipe.schedule
    problems = []
    for name, values in (("weights", data.weights), ("languages", data.languages)):
        if values and len(values) != len(data.train):
            problems.append(f"data.{name} has {len(values)} entries for {len(data.train)} data sets in data.train")
    if data.epochs and len(data.epochs) not in (1, len(data.train)):
        problems.append(
            f"data.epochs has {len(data.epochs)} numbers for {len(data.train)} data sets in data.train; give one for all or one each"
        )
    if schedule.epochs is not None and (given := _ways_to_share(recipe)):
        problems.append(f"schedule.epochs trains on all of the data, but data.{given[0]} selects parts of it; give one of them")
    for number, rule in enumerate(recipe.freeze):
        if rule.until_epoch is not None and (schedule.epochs is None or not 0 < rule.until_epoch < schedule.epochs):
            known = "not given" if schedule.epochs is None else f"{schedule.epochs:g}"
            problems.append(
                f"freeze[{number}].until_epoch is {rule.until_epoch:g}; expected more than 0 and less than schedule.epochs ({known})"
                + (f"; or say freeze.{number}.until_step=STEPS freeze.{number}.until_epoch=null" if schedule.epochs is None else "")
            )
    return (
        problems + _share_problems(recipe) + _named_share_problems(recipe) + _sampling_problems(recipe) + _answer_problems(recipe, inputs)
    )


def _ways_to_share(recipe: Recipe) -> list[str]:
    """Keys that say how much of each data set is seen."""
    data = recipe.data
    given = [name for name in ("weights", "shares", "blend") if getattr(data, name)]
    return given + (["sampling_exponent"] if data.sampling_exponent is not None and len(data.train) > 1 else [])


def _sampling_problems(recipe: Recipe) -> list[str]:
    """Of languages that are drawn by a power of their text."""
    data, ways = recipe.data, _ways_to_share(recipe)
    if "sampling_exponent" not in ways:
        return []
    problems = []
    if len(ways) > 1:
        problems.append(
            f"data.{ways[0]} and data.sampling_exponent both set the share of each data set; set data.sampling_exponent=null, or leave"
            " the other out"
        )
    if not data.languages:
        problems.append(
            f"data.sampling_exponent is {data.sampling_exponent:g}, with which languages are sampled; give with data.languages the language of each"
            " data set is in, give data.table, or set it to null"
        )
    return problems


def _answer_problems(recipe: Recipe, inputs: RunInputs) -> list[str]:
    data, problems = recipe.data, []
    for path, manifest in zip(data.train, inputs.train, strict=True):
        if has_answers(manifest) and manifest.facts["longest_pair"] > data.sequence_length + 1:
            problems.append(
                f"the data set {path} has a question-answer pair of {manifest.facts['longest_pair']} tokens, which has to fit into one sample;"
                f" set data.sequence_length to at least {manifest.facts['longest_pair'] - 1}"
            )
    if any(map(has_answers, inputs.train)) and recipe.schedule.epochs is None:
        problems.append("question-answer pairs are trained in epochs; give schedule.epochs")
    return problems


def _share_problems(recipe: Recipe) -> list[str]:
    data = recipe.data
    if not data.shares:
        return []
    problems = []
    if data.weights:
        problems.append("data.weights and data.shares both set the share of each data set; give one of them")
    if abs(sum(data.shares.values()) - 1) > 1e-6:
        problems.append(f"data.shares add up to {sum(data.shares.values()):g}; expected 1")
    if not data.languages:
        problems.append(f"data.shares speak of {', '.join(data.shares)}; say with data.languages which language each data set is in")
    else:
        problems += [f"data.shares has {name}, but no data set is in it" for name in data.shares if name not in data.languages]
        problems += [f"data.languages has {name}, which has no share in data.shares" for name in {*data.languages} - {*data.shares}]
    return problems


def _named_share_problems(recipe: Recipe) -> list[str]:
    data, problems = recipe.data, []
    if data.blend is None:
        return []
    if other := [name for name in ("weights", "shares") if getattr(data, name)]:
        problems.append(f"data.blend and data.{other[0]} both set the share of each data set; give one of them")
    names = [Path(path).name for path in data.train]
    if missing := [name for name in data.blend if name not in names]:
        problems.append(
            f"data.blend has {', '.join(missing)}, but no data set of data.train is called so (its last folder); give all of them,"
            " or say with data.blend=null data.weights=[...] how much of each there is"
        )
    if unknown := [path for path, name in zip(data.train, names, strict=True) if name not in data.blend]:
        problems.append(f"data.train has {', '.join(unknown)}, to which data.blend gives no share; it names {', '.join(data.blend)}")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        problems.append(
            f"data.train has several data sets called {', '.join(twice)}, which data.blend cannot distinguish; rename their folders"
        )
    return problems


def pass_warnings(recipe: Recipe, train: Sequence[Manifest]) -> list[str]:
    """A sentence for each data set that is seen so often that it teaches nothing more, unless the recipe itself counts passes.

    Of many languages one sentence speaks of all that are.

    Source: Muennighoff et al. 2023 (Scaling data-constrained language models): what is repeated is worth little beyond 16 passes.
    """
    if recipe.schedule.epochs is not None or recipe.data.epochs:
        return []
    weights, samples = weights_of(recipe.data, train), recipe.run_samples
    often = {}
    for path, weight, size in zip(recipe.data.train, weights, samples_of(recipe.data, train), strict=True):
        passes = samples * weight / sum(weights) / max(size, 1)
        if passes > _MANY_PASSES:
            often[path] = passes
    advice = f"after {_MANY_PASSES} epochs a text teaches little"
    if len(often) > _MANY_SENTENCES:
        most = max(often, key=lambda path: often[path])
        return [
            f"the run sees {len(often)} of {len(train)} data sets more than {_MANY_PASSES} times, the most {most} ({often[most]:,.0f} times);"
            f" {advice}: give them more data, or the run fewer steps or a higher data.sampling_exponent"
        ]
    return [
        f"the run sees the data set {path} {passes:,.0f} times; {advice}:"
        " give it more data or fewer steps, or say with schedule.epochs that this is meant"
        for path, passes in often.items()
    ]


def data_problems(recipe: Recipe, inputs: RunInputs) -> list[str]:
    """What is wrong between the data sets, the model and the steps."""
    data, model = recipe.data, inputs.model
    problems = []
    positions = model["max_position_embeddings"]
    if data.sequence_length > positions:
        problems.append(f"data.sequence_length ({data.sequence_length}) is longer than the model's context length ({positions} positions)")
    if recipe.run.validate_every_steps is not None and not data.validation:
        problems.append("run.validate_every_steps is given without data.validation")
    steps, most = recipe.total_steps, largest_steps(recipe, inputs.train)
    if most is not None and steps > most:
        name = "max_steps" if recipe.schedule.max_steps is not None else "train_tokens"
        value = most if name == "max_steps" else recipe.schedule.batches.samples(most) * data.sequence_length
        problems.append(
            f"the run's {steps:,} steps need more data: data x epochs give {most:,}; set schedule.{name}={value}, or more epochs"
        )
    return problems + _dataset_problems(recipe, inputs) + _front_problems(recipe, inputs) + _document_problems(recipe, inputs)


def _front_problems(recipe: Recipe, inputs: RunInputs) -> list[str]:
    """Of data sets whose documents begin otherwise than each other, the recipe says, or evaluation of the checkpoint would."""
    data, problems = recipe.data, []
    named = _named_sets(recipe, inputs)
    fronts = {path: manifest.facts.get(FRONT, []) for path, manifest in named}
    first = next(iter(fronts))
    for path, manifest in named:
        found, words = fronts[path], front_words(fronts[path])
        expected = _expected_front(recipe, inputs, manifest)
        if found != fronts[first]:
            problems.append(
                f"the data set {path} has {words} in front of each document, but {first} has {front_words(fronts[first])};"
                " make both with the same --bos"
            )
        elif data.bos is not None and bool(found) != data.bos:
            wanted = "a beginning-of-text token" if data.bos else "none"
            problems.append(
                f"the recipe is for data with {wanted} in front of each document (data.bos={str(data.bos).lower()}), but the data set {path}"
                f" has {words}; make it with --bos {'yes' if data.bos else 'no'}, or set data.bos=null"
            )
        elif data.bos is None and expected is not None and found != expected:
            problems.append(
                f"the data set {path} has {words} in front of each document, but the model's texts begin with {front_words(expected)}, in"
                f" evaluation and generation too; make it again with --bos auto, or say with data.bos={str(bool(found)).lower()} that this is meant"
            )
    return problems


def _expected_front(recipe: Recipe, inputs: RunInputs, manifest: Manifest) -> list[str] | None:
    """What the checkpoint was trained with, or its tokenizer puts in front of a text; None where neither is known."""
    for facts, key in ((inputs.checkpoint.facts, FRONT), (manifest.facts, OWN_FRONT)):
        if key in facts:
            return list(facts[key])
    tokenizer_dir = Path(recipe.model.checkpoint) / "context" / "hf"
    if recipe.data.bos is not None or not tokenizer_dir.is_dir() or not tokenizer_files(tokenizer_dir):
        return None
    return own_front_tokens(load_tokenizer(tokenizer_dir))  # of data sets that do not say it yet


def _named_sets(recipe: Recipe, inputs: RunInputs) -> list[tuple[str, Manifest]]:
    """Path and manifest of each data set."""
    validation = [(path, inputs.validation[language]) for language, path in recipe.data.validation.items()]
    return [*zip(recipe.data.train, inputs.train, strict=True), *validation]


def _document_problems(recipe: Recipe, inputs: RunInputs) -> list[str]:
    """What keeps `data.document_mask` from finding the ends of documents; the ends of some documents are read."""
    data, problems = recipe.data, []
    if not data.document_mask:
        return []
    for path, manifest in _named_sets(recipe, inputs):
        end_of_text = manifest.facts.get("eos_token_id")
        if end_of_text is None:
            problems.append(
                f"data.document_mask ends documents at the end-of-text token, but the data set {path} was made with a tokenizer that has"
                " none; set its eos_token and make the data again, or leave the mask out"
            )
        elif not has_answers(manifest) and not _has_ends(Path(path), end_of_text):
            problems.append(
                f"data.document_mask ends documents at the end-of-text token ({end_of_text}), but none of the first {_LOOKED_AT} documents of"
                f" the data set {path} ends with it; make the data with data_prep.to_megatron, or leave the mask out"
            )
    return problems


def _has_ends(directory: Path, end_of_text: int) -> bool:
    if not directory.is_dir():  # of a published run, which is planned
        return True
    tokens = TokenFile(directory / PREFIX)
    documents = (tokens[number] for number in range(min(len(tokens), _LOOKED_AT)))
    return any(len(document) and document[-1] == end_of_text for document in documents)


def _dataset_problems(recipe: Recipe, inputs: RunInputs) -> list[str]:
    data, model = recipe.data, inputs.model
    problems = []
    expected = inputs.checkpoint.facts.get("tokenizer_digest")
    for path, manifest in _named_sets(recipe, inputs):
        found = manifest.facts["tokenizer_digest"]
        if expected is not None and found != expected:
            problems.append(
                f"the data set {path} uses tokenizer {found}, but the checkpoint {recipe.model.checkpoint} uses tokenizer {expected};"
                " make both with the same tokenizer"
            )
        elif manifest.facts["vocab_size"] > model["vocab_size"]:
            problems.append(
                f"the data set {path} has ids up to {manifest.facts['vocab_size'] - 1}, but the checkpoint has {model['vocab_size']} rows"
            )
        if not has_answers(manifest) and manifest.facts["num_tokens"] < data.sequence_length + 1:
            language = dict(zip(data.train, data.languages, strict=False)).get(path)
            advice = f": give the language {language} more text, or leave it out" if language else ""
            problems.append(
                f"the data set {path} has {manifest.facts['num_tokens']} tokens; one sample needs {data.sequence_length + 1}{advice}"
            )
    return problems
