"""Forms of valid answers and metrics of texts, against published values and by hand."""

import math

import pytest

from eval.protocols import scoring
from eval.protocols.italian import score_squad
from eval.protocols.scoring import read_label, read_numbers
from eval.protocols.simplification import sari
from eval.protocols.simplification import score as score_senta
from eval.protocols.text_overlap import Words, exact_match, italian_answer, rouge_l, squad_answer, word_f1
from eval.protocols.translation import score as score_translation
from eval.protocols.translation import score_runs, sd_over_runs
from eval.scoring.score_intervals import score_interval


@pytest.mark.parametrize(
    ("form", "text", "label"),
    [
        ("yes_no", " Da.", 0),
        ("yes_no", "ne, ker", 1),
        ("yes_no", "Danes je lepo", None),
        ("yes_no", "Nekateri", None),
        ("yes_no", "", None),
        ("yes_no", "Odgovor: Da", None),
        ("one_two", "2", 1),
        ("one_two", " Hipoteza 1.", 0),
        ("one_two", "12", None),
        ("one_two", "3", None),
        ("holds", "Ne  drži", 1),
        ("holds", "DRŽI", 0),
        ("holds", "Drživa se", None),
        ("holds", "Ne vemo", None),
        ("holds_or_unknown", "ne vemo.", 2),
        ("inference", "Nevtralnost", 1),
        ("inference", "nasprotovanje. " * 50, 2),
        ("inference", "nasprotno", None),
    ],
)
def test_forms(form, text, label):
    assert read_label(text, form) == label


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        (" 1, 3", {1, 3}),
        ("Pravilni odgovori: 2", {2}),
        ("2,2 in še", {2}),
        ("4", None),
        ("0", None),
        ("1234567890", None),
        ("", None),
        ("noben", None),
    ],
)
def test_numbers(text, numbers):
    assert read_numbers(text, highest=3) == numbers


def test_an_invalid_answer_is_wrong_and_counts_apart():
    document = {"label": 1, "choices": ["Da.", "Ne."]}
    f1 = {"macro_f1": (1, 1, 2), "macro_f1_valid": (1, 1, 2)}
    assert scoring.yes_no(document, ["ne"]) == {"invalid": 0.0, "acc": 1.0, "acc_valid": 1.0, **f1}
    f1 = {"macro_f1": (1, 0, 2), "macro_f1_valid": (1, 0, 2)}
    assert scoring.yes_no(document, ["da"]) == {"invalid": 0.0, "acc": 0.0, "acc_valid": 0.0, **f1}
    found = scoring.yes_no(document, ["morda"])
    assert (found["invalid"], found["acc"], found["macro_f1"]) == (1.0, 0.0, (1, -1, 2))
    assert math.isnan(found["acc_valid"])


def test_multirc_by_hand():
    """GaMS, 5.1: "We measure other metrics for each task only on valid predictions": F1 of an item is NaN where the answer is invalid."""
    document = {"right": [1, 3], "choices": ["a", "b", "c"]}
    whole = {"invalid": 0.0, "acc": 1.0, "acc_valid": 1.0, "f1_answers": (2, 2, 2), "f1_items": 1.0}
    assert scoring.numbers(document, ["3, 1"]) == whole
    assert (scoring.numbers(document, ["1, 2"])["f1_answers"], scoring.numbers(document, ["1, 2"])["f1_items"]) == ((1, 2, 2), 0.5)
    assert math.isnan(scoring.numbers(document, ["vsi"])["f1_items"])
    assert scoring.numbers(document, ["vsi"])["f1_answers"] == (0, 0, 2)
    # 3 hits of 4 chosen and 6 right: F1 = 6 / 10.
    assert scoring.f1_over_answers([(2, 2, 2), (1, 2, 2), (0, 0, 2)]) == pytest.approx(0.6)
    assert scoring.share_all_right([("a", 1.0), ("b", 1.0), ("a", 0.0), ("c", 1.0)]) == pytest.approx(2 / 3)
    right, wrong = {"label": 1, "question_id": "q"}, {"label": 0, "question_id": "q"}
    assert scoring.candidate(right, [(-2.0, False), (-1.0, False)]) == {"acc": 1.0, "f1_answers": (1, 1, 1), "exact_match": ("q", 1.0)}
    assert scoring.candidate(wrong, [(-2.0, False), (-1.0, False)]) == {"acc": 0.0, "f1_answers": (0, 1, 0), "exact_match": ("q", 0.0)}


def test_f1_of_classes_among_valid_answers():
    """GaMS, Table 6: "Entailment F_1", "Neutral F_1", "Contradiction F_1", on valid predictions; against scikit-learn."""
    from sklearn.metrics import f1_score

    answers = [(0, 0, 3), (0, 1, 3), (1, 1, 3), (1, -1, 3), (2, 0, 3), (2, 2, 3), (2, -1, 3)]
    valid = [answer[:2] for answer in answers if answer[1] >= 0]
    expected = f1_score(*zip(*valid), average=None)
    found = [scoring.f1_entailment(answers), scoring.f1_neutral(answers), scoring.f1_contradiction(answers)]
    assert found == pytest.approx(expected.tolist())
    assert scoring.macro_f1_valid(answers) == pytest.approx(expected.mean())
    assert scoring.macro_f1(answers) < scoring.macro_f1_valid(answers)
    assert math.isnan(scoring.f1_neutral([(0, -1, 3)])) and math.isnan(scoring.macro_f1_valid([(0, -1, 3)]))
    for aggregation, value in zip((scoring.f1_entailment, scoring.f1_neutral, scoring.f1_contradiction), expected):
        interval = score_interval(answers, aggregation)
        assert interval.value == pytest.approx(value) and interval.low < value < interval.high and interval.n == 5
    assert score_interval([(0, -1, 3)], scoring.f1_neutral) is None


SPECIES = "About 95 species are currently accepted ."
SPECIES_REFERENCES = (
    "About 95 species are currently known .",
    "About 95 species are now accepted .",
    "95 species are now accepted .",
)


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("About 95 you now get in .", 26.953601953601954),
        ("About 95 species are now agreed .", 61.709656084656075),
        ("About 95 species are currently agreed .", 50.88681849551415),
        (SPECIES, 55.20655085990839),
        ("About 95 species are now accepted .", 78.29135035656775),
        ("", 16.078042328042326),
    ],
)
def test_sari_is_that_of_hugging_face(output, expected):
    """Values of the reference script on its own example, whose source and references these are."""
    assert sari(SPECIES, output, SPECIES_REFERENCES) == pytest.approx(expected, abs=1e-10)


def test_sari_of_a_slovene_sentence_and_its_baselines():
    document = {
        "source": "Žena, ki je šla čez cesto, je kupila češnje.",
        "references": ["Žena je šla čez cesto. Kupila je češnje.", "Žena je kupila češnje."],
    }
    found = score_senta(document, [" Žena je kupila češnje. "])
    assert found["sari"] == pytest.approx(62.419871794871796)
    assert (found["empty"], found["instruction_repeated"], found["copied"]) == (0.0, 0.0, 0.0)
    repeated = score_senta(document, ["Poenostavi naslednji stavek."])
    assert repeated["sari"] == pytest.approx(25.311447811447813)
    assert repeated["instruction_repeated"] == 1.0
    copied, empty = score_senta(document, [document["source"]]), score_senta(document, [""])
    assert (copied["copied"], copied["sari"]) == (1.0, found["sari_copy"])
    assert (empty["empty"], empty["sari"]) == (1.0, found["sari_empty"])
    with pytest.raises(ValueError, match=r"^SARI needs at least one reference$"):
        sari("a", "b", [])


def test_rouge_keeps_letters_that_are_not_ascii():
    from rouge_score.rouge_scorer import RougeScorer

    text = "Žena je kupila češnje"
    assert Words().tokenize(text) == ["žena", "je", "kupila", "češnje"]
    assert rouge_l(text, [text, "Žena je prodala češnje", "ключ"], Words()) == pytest.approx([100, 75, 0])
    russian = "Моје тело је правило сенку"
    assert RougeScorer(["rougeL"]).score(russian, russian)["rougeL"].fmeasure == 0, "the trap: the default deletes it all"
    assert rouge_l(russian, [russian], Words()) == [100]


def test_rouge_on_pieces_of_a_tokenizer():
    """Burmese has no spaces; pieces of a tokenizer that knows bytes still compare."""
    from tests.eval.tiny_models import tiny_tokenizer

    one, other = "မင်္ဂလာပါ", "မင်္ဂလာ"
    (same,), (near,) = rouge_l(one, [one], tiny_tokenizer()), rouge_l(other, [one], tiny_tokenizer())
    assert same == 100
    assert 80 < near < 100


def test_short_answers():
    # The values of evaluate-v1.1.py: ASCII marks go without a trace, symbols among them; other marks stay, and English articles go.
    scripted = {"$5": "5", "+39": "39", "U.S.": "us", "L'Italia": "litalia", "«The  end»": "« end»", "a Roma": "roma"}
    assert {text: squad_answer(text) for text in scripted} == scripted
    assert italian_answer("L'Italia, è  il «paese»!") == "italia è paese"
    assert [exact_match("la Roma", ["Roma.", "Milano"], *rule) for rule in ((), (italian_answer,))] == [0.0, 1.0]
    assert word_f1("nel mese di ottobre 1973", ["ottobre 1973", "1974"]) == pytest.approx(2 * 2 / (5 + 2))
    assert (word_f1("", ["x"]), word_f1("?", ["!"]), exact_match("?", ["!"])) == (0.0, 0.0, 1.0)
    found = score_squad({"references": ["1973", "ottobre 1973"]}, [" ottobre 1973\n"])
    assert found == {
        "rougeL_first": pytest.approx(200 / 3),
        "rougeL_max": 100,
        "exact_match": 1.0,
        "f1": 1.0,
        "exact_match_italian": 1.0,
        "f1_italian": 1.0,
        "empty": 0.0,
    }


def test_chrf_is_sacrebleus_and_stands_beside_the_copy():
    """By hand, chrF with orders of one character only could be told; all six are sacrebleu's, whose corpus value of one pair agrees."""
    from sacrebleu import corpus_chrf

    document = {"source": "The cat sleeps.", "references": ["Mačka spi."]}
    found = score_translation(document, ["Mačka spava.\n"])
    assert found["chrf_sentence"] == pytest.approx(corpus_chrf(["Mačka spava."], [["Mačka spi."]]).score, abs=1e-9)
    assert found["chrf"] == ("Mačka spi.", "Mačka spava.")
    assert found["chrf_sentence_copy"] < 15 < found["chrf_sentence"] < 100
    assert score_translation(document, ["Mačka spi."])["chrf_sentence"] == 100
    assert score_translation(document, [""]) | {"bleu": 0, "chrf": 0, "chrf_sentence_copy": 0} == {
        "chrf": 0, "bleu": 0, "chrf_sentence": 0.0, "chrf_sentence_copy": 0, "empty": 1.0,
    }  # fmt: skip


def test_sampled_runs_are_averaged_and_their_spread_is_between_runs():
    document = {"source": "a", "references": ["Mačka spi."]}
    found = score_runs(document, [["Mačka spi.", "", "Mačka spi.", ""]])
    assert (found["chrf_sentence"], found["empty"], found["chrf_sentence_sd"]) == (50, 0.5, (100, 0, 100, 0))
    # Run means 60, 40, 50: standard deviation 10.
    assert sd_over_runs([(70.0, 30.0, 40.0), (50.0, 50.0, 60.0)]) == pytest.approx(10.0)
