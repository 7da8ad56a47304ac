"""Many languages: the table of their data, shares by a power of their text, and what is refused."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.artifacts import Manifest, read_manifest
from data_prep.megatron.index import PREFIX, TokenFile
from data_prep.to_megatron import to_megatron
from data_prep.tokenizers.files import load_tokenizer
from recipes.numbers.blend import Order
from recipes.numbers.steps import weights_of
from recipes.rules.checks import check_run
from recipes.rules.compose import compose_recipe
from recipes.rules.data_checks import pass_warnings
from recipes.rules.inputs import read_inputs
from recipes.rules.languages import drawn_shares, seen_languages
from recipes.rules.schema import DataRecipe
from tests.conftest import TEXT, Inputs
from tests.processes import call_command
from tests.recipes.tiny_runs import train_on_ranks


def manifest(tokens: int) -> Manifest:
    return Manifest(stage="data_prep.to_megatron", facts={"num_tokens": tokens})


def test_shares_are_those_of_xlm_r() -> None:
    """q_i = p_i ** a / sum of all, p_i the language's part of the text (Conneau et al. 2020, section 3.1)."""
    tokens = {"eng_Latn": 80_000, "slv_Latn": 1_000, "srp_Cyrl": 10}
    parts = np.array(list(tokens.values())) / 81_010
    assert list(drawn_shares(tokens, 0.3).values()) == pytest.approx(list(parts**0.3 / (parts**0.3).sum()))
    assert list(drawn_shares(tokens, 1).values()) == pytest.approx(list(parts))
    assert list(drawn_shares(tokens, 0).values()) == pytest.approx([1 / 3] * 3)


def test_data_sets_of_a_language_share_by_their_tokens() -> None:
    data = DataRecipe(sequence_length=8, train=("a", "b", "c"), languages=("sl", "en", "sl"), sampling_exponent=0.3)
    a, b, c = weights_of(data, [manifest(600), manifest(64_000), manifest(400)])
    assert (a + c) / b == pytest.approx((1000 / 64_000) ** 0.3)
    assert a / c == pytest.approx(1.5)


def test_what_is_said_of_each_language() -> None:
    found = seen_languages(("sl", "en", "sl"), (600, 64_000, 400), (1.5, 7.0, 1.5), (30, 60, 10), sequence_length=50)
    assert found == {
        "sl": {
            "tokens": 1000,
            "planned_share": pytest.approx(0.3),
            "samples": 40,
            "share": pytest.approx(0.4),
            "passes": pytest.approx(2.0),
        },
        "en": {
            "tokens": 64_000,
            "planned_share": pytest.approx(0.7),
            "samples": 60,
            "share": pytest.approx(0.6),
            "passes": 60 * 50 / 64_000,
        },
    }


# -- the table --------------------------------------------------------------------------------------------------------------


def save_table(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_a_table_names_all_data(tmp_path: Path) -> None:
    table = save_table(
        tmp_path / "languages.yaml",
        "slv_Latn: {train: [data/sl_a, data/sl_b], validation: held_out/sl}\nsrp_Cyrl: data/sr\nno: /elsewhere/no\n".replace(
            "no:", "'no':"
        ),
    )
    data = compose_recipe("ofa/mono", [f"data.table={table}"]).data
    assert data.train == (f"{tmp_path}/data/sl_a", f"{tmp_path}/data/sl_b", f"{tmp_path}/data/sr", "/elsewhere/no")
    assert data.languages == ("slv_Latn", "slv_Latn", "srp_Cyrl", "no")
    assert data.validation == {"slv_Latn": f"{tmp_path}/held_out/sl"}
    assert data.sampling_exponent == 0.3


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[]", "the table {path} holds no languages; expected lines such as 'slv_Latn: data/slv_Latn'"),
        ("no: data/no", "the table {path} has a language that YAML takes for false; write it in quotes, such as 'no'"),
        ("Slovene: data/sl", "the table {path} has the language 'Slovene'; expected a code such as sl, slv or slv_Latn"),
        (
            "slv_Latn:",
            "the table {path} has None for the language slv_Latn; expected a data set, a list of them, or {{train: DATA SET, validation: DATA SET}}",
        ),
        (
            "slv_Latn: {train: a, heldout: b}",
            "the table {path} has {{'train': 'a', 'heldout': 'b'}} for the language slv_Latn; expected a data set, a list of them, or"
            " {{train: DATA SET, validation: DATA SET}}",
        ),
    ],
)
def test_tables_that_are_none(text: str, sentence: str, tmp_path: Path) -> None:
    path = save_table(tmp_path / "languages.yaml", text)
    with pytest.raises(ValueError, match=f"^{re.escape(sentence.format(path=path))}$"):
        compose_recipe("ofa/mono", [f"data.table={path}"])


def test_a_table_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"^data.table is {tmp_path}/x.yaml, which does not exist; expected a YAML file"):
        compose_recipe("ofa/mono", [f"data.table={tmp_path}/x.yaml"])
    path = save_table(tmp_path / "languages.yaml", "sl: data/sl")
    with pytest.raises(ValueError, match=r"^data.table and data.train both name data sets; give one of them$"):
        compose_recipe("ofa/mono", [f"data.table={path}", "data.train=[data/sl]"])


# -- rules ------------------------------------------------------------------------------------------------------------------


def refusal(inputs: Inputs, *overrides: str) -> str:
    settings = [f"model.checkpoint={inputs.checkpoint}", "data.sequence_length=48", *overrides]
    recipe = compose_recipe("demo_adapt", settings)
    with pytest.raises(ValueError) as caught:
        check_run(recipe, read_inputs(recipe))
    return str(caught.value).removeprefix(f"recipe {recipe.name} cannot run: ")


def test_what_contradicts_a_power_of_the_text(inputs: Inputs) -> None:
    two = f"data.train=[{inputs.data},{inputs.held_out}]"
    assert refusal(inputs, two, "data.sampling_exponent=0.3") == (
        "data.sampling_exponent is 0.3, with which languages are sampled; give with data.languages the language of each data set is in, give"
        " data.table, or set it to null"
    )
    both = (two, "data.sampling_exponent=0.3", "data.languages=[sl,en]", "data.shares={sl: 0.5, en: 0.5}")
    assert refusal(inputs, *both) == (
        "data.shares and data.sampling_exponent both set the share of each data set; set data.sampling_exponent=null, or leave the"
        " other out"
    )
    assert refusal(inputs, two, "data.languages=[sl,en]", "data.sampling_exponent=1.5") == (
        "data.sampling_exponent is 1.5; expected 0 to 1, from equal shares of all languages to shares by size"
    )
    passes = (two, "data.languages=[sl,en]", "data.sampling_exponent=0.3", "schedule.epochs=1", "schedule.max_steps=null")
    assert (
        refusal(inputs, *passes)
        == "schedule.epochs trains on all of the data, but data.sampling_exponent selects parts of it; give one of them"
    )


def test_a_language_without_a_sample(inputs: Inputs, tmp_path: Path) -> None:
    (tmp_path / "sr.txt").write_text("Kuća.\n", encoding="utf-8")
    call_command("data_prep.to_megatron", "--input", tmp_path / "sr.txt", "--tokenizer", inputs.tokenizer, "--output", tmp_path / "sr")
    found = read_manifest(tmp_path / "sr")
    assert found is not None
    table = save_table(tmp_path / "languages.yaml", f"slv_Latn: {inputs.data}\nsrp_Latn: sr\n")
    assert refusal(inputs, f"data.table={table}") == (
        f"the data set {tmp_path}/sr has {found.facts['num_tokens']} tokens; one sample needs 49: give the language srp_Latn more text, or leave"
        " it out"
    )


def test_one_sentence_for_many_languages_that_come_too_often() -> None:
    recipe = compose_recipe("ofa/mono")
    train = tuple(f"data/{number:03d}" for number in range(300))
    languages = tuple(f"{chr(97 + number // 26)}{chr(97 + number % 26)}x" for number in range(300))
    data = DataRecipe(sequence_length=512, train=train, languages=languages, sampling_exponent=0.3)
    sizes = [manifest(10_000_000 if number else 600) for number in range(300)]
    many = [manifest(10_000_000_000 if number < 100 else 600 + number) for number in range(300)]
    recipe = replace(recipe, data=data)
    [sentence] = pass_warnings(recipe, sizes)
    assert sentence.startswith("the run sees the data set data/000 ")
    [sentence] = pass_warnings(recipe, many)
    assert re.fullmatch(
        r"the run sees 200 of 300 data sets more than 16 times, the most data/\d+ \([\d,]+ times\); after 16 epochs a text teaches little: give them"
        r" more data, or the run fewer steps or a higher data.sampling_exponent",
        sentence,
    )


# -- what a checkpoint says ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_samples_of_each_data_set_in_an_order() -> None:
    from recipes.training.metrics import samples_of_each
    from recipes.training.passes import OrderedSamples

    order = Order(np.array([0, 2, 2, 0, 1], dtype=np.uint16), np.arange(5, dtype=np.uint32))
    samples: Any = OrderedSamples([None] * 4, order)
    assert samples_of_each(samples, 4, num_data_sets=4).tolist() == [2, 0, 2, 0]


def data_set_of(sample: Any, data_sets: list[Path], end_of_text: int) -> int:
    """The one data set that has the longest piece of a document in a sample."""
    labels = sample["labels"].numpy()
    piece = max(np.split(labels, np.flatnonzero(labels == end_of_text) + 1), key=len)
    texts = [TokenFile(path / PREFIX) for path in data_sets]
    found = [number for number, text in enumerate(texts) if _occurs(piece, text.slice(0, text.num_tokens))]
    assert len(found) == 1
    return found[0]


def _occurs(start: np.ndarray, text: np.ndarray) -> bool:
    places = np.flatnonzero(text[: len(text) - len(start) + 1] == start[0])
    return any(np.array_equal(text[place : place + len(start)], start) for place in places)


@pytest.mark.long
def test_hundreds_of_languages(encoder: Inputs, tmp_path: Path) -> None:
    """By one table, from 300 data sets of 1 to 60 lines; two hundred samples are drawn as the shares say."""
    lines, tokenizer = TEXT.read_text(encoding="utf-8").splitlines(), load_tokenizer(encoder.tokenizer)
    codes = [f"{chr(97 + number // 26)}{chr(97 + number % 26)}x_Latn" for number in range(300)]
    for number, code in enumerate(codes):
        text = tmp_path / f"{code}.txt"
        text.write_text("\n".join((lines * 60)[number : number + 3 + number % 60]) + "\n", encoding="utf-8")
        to_megatron([text], tokenizer, tmp_path / "data" / code)
    save_table(tmp_path / "languages.yaml", "".join(f"{code}: data/{code}\n" for code in codes))
    arguments = [f"model.checkpoint={encoder.checkpoint}", f"data.table={tmp_path}/languages.yaml", "schedule.max_steps=25"]
    train_on_ranks(tmp_path / "run", "--recipe", "ofa/mono", "+size=tiny", *arguments)
    found = read_manifest(tmp_path / "run/checkpoints/step_0000025")
    assert found is not None
    languages = found.facts["languages"]
    assert list(languages) == codes
    assert sum(entry["samples"] for entry in languages.values()) == 25 * 8
    assert sum(entry["planned_share"] for entry in languages.values()) == pytest.approx(1)
    assert all(abs(entry["samples"] - 200 * entry["planned_share"]) <= 1 for entry in languages.values())
