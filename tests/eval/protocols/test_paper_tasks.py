"""The papers' task files: every one asks and scores as computed by hand, on rows of our own and on real ones."""

import os
from pathlib import Path

import pytest
from lm_eval.api.model import LM
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer

from eval.protocols.italian import _without_brackets
from eval.protocols.text_overlap import hugging_face_tokenizer
from eval.running.task_runs import TASKS_DIR, find_tasks, run_task
from tests.eval.paper_rows import LANGUAGES, NUM_EVALUATED, write_rows
from tests.eval.suite_rows import FROM_THE_HUB
from tests.eval.tiny_models import tiny_tokenizer
from tests.processes import ROOT

OWN = {"completion_sl", "completion_en", "heldout_text", "instructions_en", "instructions_it", "instructions_sl"}
NAMES = sorted({path.stem for path in TASKS_DIR.rglob("*.yaml") if path.parent.name not in FROM_THE_HUB} - OWN)
ENDLESS = "Da da da da " * 40


class Scripted(LM):
    """Generates the answers of a function of document and run; of choices it likes the one with the number of another function."""

    def __init__(self, answer=None, choice=None):
        super().__init__()
        self.answer, self.choice = answer, choice
        self.prompts: dict[int, str] = {}
        self.kwargs: dict = {}

    def generate_until(self, requests, **_):
        runs: dict[int, int] = {}
        answers = []
        for request in requests:
            self.prompts[request.doc_id], self.kwargs = request.args
            runs[request.doc_id] = runs.get(request.doc_id, -1) + 1
            answers.append(self.answer(request.doc, runs[request.doc_id]))
        return answers

    def loglikelihood(self, requests, **_):
        for request in requests:
            self.prompts[request.doc_id] = request.args[0]
        return [(-1.0 if request.idx == self.choice(request.doc) else -2.0, False) for request in requests]

    def loglikelihood_rolling(self, requests, **_):
        raise AssertionError("no rolling task here")


@pytest.fixture(scope="module")
def rouge_folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("rouge_tokenizer")
    tiny_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def ask(tmp_path_factory, rouge_folder, monkeypatch):
    """Runs a task on our own rows, or on those of a given folder."""
    monkeypatch.setenv("SCION_ROUGE_TOKENIZER", str(rouge_folder))
    hugging_face_tokenizer.cache_clear()
    own = write_rows(tmp_path_factory.mktemp("rows"))

    def run(task: str, lm: LM, *, data: Path = own, **metadata):
        summary, samples = run_task(lm, find_tasks([task], metadata={"data": str(data), **metadata})[task])
        return {name: entry["value"] for name, entry in summary["metrics"].items()}, samples

    return run


# The text that gives each label.
LABELS = {
    "boolq": ("Da.", "Ne."),
    "cb": ("Drži.", "Ne drži.", "Ne vemo."),
    "copa": ("1", "2"),
    "rte": ("Drži.", "Ne drži."),
    "si_nli": ("Sosledje.", "Nevtralnost.", "Nasprotovanje."),
    "wsc": ("Da.", "Ne."),
}
SHOTS = {"boolq": 3, "cb": 5, "copa": 5, "rte": 3, "si_nli": 5, "wsc": 4}


@pytest.mark.parametrize("name", LABELS)
def test_generated_answers_right_wrong_invalid_empty_and_endless(ask, name):
    def answer(document, run):
        number = int(document["id"].partition(":")[2])
        right = LABELS[name][document["label"]]
        wrong = LABELS[name][(document["label"] + 1) % len(LABELS[name])]
        return [f" {right}", f"{wrong}\n", "Ne bi vedel odgovoriti"[3:], "", f"{right.lower()} in še " * 30, f" {right.upper()}"][number]

    lm = Scripted(answer)
    found, samples = ask(f"sl_{name}_gen", lm)
    assert (found["acc"], found["invalid"], found["acc_valid"]) == (3 / 6, 2 / 6, 3 / 4)
    assert 0 < found["macro_f1"] < 1
    assert lm.kwargs["until"] == ["\n"]
    first = samples[0]["doc"]
    assert len(first["shot_ids"]) == SHOTS[name]
    assert all(identity.startswith("train:") for identity in first["shot_ids"])
    prompt = lm.prompts[0]
    # The question ends where the answer begins, without a space that would cost SentencePiece models the next token.
    assert prompt.endswith(":")
    assert sum(prompt.count(f": {label}\n\n") for label in LABELS[name]) == SHOTS[name]


# The prompt of the first row without examples, as the framework's code of July 2024 (commit e6b274c) makes it.
JULY_2024 = {
    "boolq": "Podano je besedilo in vprašanje, ki se navezuje na to besedilo. Odgovori na vprašanje zgolj z Da ali Ne. Odgovora ne"
    " pojasnjuj.\n\nBesedilo: Grad 0 stoji na hribu.\nVprašanje: Ali stoji grad 0?\nOdgovor:",
    "cb": "Podano je besedilo, hipoteza ter vprašanje o resničnosti te hipoteze. Odgovori z Drži, če je hipoteza resnična glede na podano"
    " besedilo, z Ne drži, če hipoteza ni resnična ter z Ne vemo, če se iz besedila ne da sklepati o resničnosti hipoteze.\n\n"
    "Besedilo: Na mizi je 0 jabolk.\nHipoteza: Jabolk je 0. Drži ali ne drži?\nOdgovor:",
    "copa": "Podana je trditev ter dve hipotezi. Poišči hipotezo, ki predstavlja vzrok za dano trditev. Izpiši zgolj številko ustrezne"
    " hipoteze.\n\nTrditev: Reka 0 je narasla.\nHipoteza 1: Deževalo je.\nHipoteza 2: Sijalo je sonce.\n"
    "Številka hipoteze, ki predstavlja vzrok za dano trditev:",
    "rte": "Podano je besedilo in hipoteza. Povej ali je hipoteza resnična glede na podano besedilo. Odgovori z Drži, če je hipoteza"
    " resnična glede na besedilo oziroma z Ne drži, če ni.\n\nBesedilo: Na mizi je 0 jabolk.\n"
    "Hipoteza: Jabolk je 0. Drži ali Ne drži?\nOdgovor:",
    "si_nli": "Podani sta predpostavka in hipoteza. Določi ali hipoteza pomensko sledi iz predpostavke (Sosledje), ji nasprotuje"
    " (Nasprotovanje) ali pa o relaciji med njima ni možno sklepati (Nevtralnost). Odgovori zgolj s"
    ' "Sosledje", "Nasprotovanje" ali "Nevtralnost".\n\nPredpostavka: Na mizi je 0 jabolk.\nHipoteza: Jabolk je 0.\nOdgovor:',
    "wsc": "Podano je kratko besedilo, v katerem sta dve besedni zvezi označeni z **. Navedeno je tudi vprašanje, ali se ena besedna zveza"
    " nanaša na drugo. Na vprašanje odgovori zgolj z Da ali Ne.\n\n",
    "multirc": "Podano je besedilo, vprašanje, ki se navezuje na to besedilo ter seznam možnih odgovorov na to vprašanje. Izpiši številke"
    " pravilnih odgovorov.\n\nBesedilo: ",
}


@pytest.mark.some(3)
@pytest.mark.parametrize("name", JULY_2024)
def test_wording_of_the_paper_s_results(ask, name):
    """GaMS, 5.1 "our own framework": its prompts of July 2024, before the paper, beside those of October, which are the default."""
    lm = Scripted(lambda document, run: "")
    ask(f"sl_{name}_gen", lm, shots=0, wording="2024-07")
    assert lm.prompts[0] == JULY_2024[name] if name not in ("wsc", "multirc") else lm.prompts[0].startswith(JULY_2024[name])
    july = dict(lm.prompts)
    ask(f"sl_{name}_gen", lm, shots=0)
    default = dict(lm.prompts)
    ask(f"sl_{name}_gen", lm, shots=0, wording="2024-10")
    assert default == lm.prompts
    assert all(july[number] != prompt for number, prompt in default.items())
    if name == "wsc":
        assert "**" not in july[0].partition("Besedilo: ")[2] and "v zgornjem besedilu nanaša na besedno zvezo *" in july[0]
    if name == "multirc":
        assert "\n\nVprašanje: " in july[0] and "\n\nVprašanje: " not in default[0]


def test_wordings_that_there_are_not(ask):
    lm = Scripted(lambda document, run: "")
    with pytest.raises(ValueError, match=r"there is no wording '2024-08'; there are 2024-10, 2024-07$"):
        ask("sl_boolq_gen", lm, wording="2024-08")
    with pytest.raises(
        ValueError, match=r"the wording of 2024-07 has no multirc_answers, which only this project's wording has; it has boolq, cb, "
    ):
        ask("sl_multirc_mc", lm, wording="2024-07")


def test_no_process_is_forked_for_a_standard_error(tmp_path, monkeypatch):
    """lm-eval would fork one per core for some metrics, beside the threads of torch; that has stood still for ever."""

    def fork():
        raise AssertionError("forked")

    found = find_tasks(["sl_copa_gen"], metadata={"data": str(write_rows(tmp_path))})["sl_copa_gen"]
    monkeypatch.setattr(os, "fork", fork)
    summary, _ = run_task(Scripted(lambda document, run: f" {document['label'] + 1}"), found)
    errors = {name: entry["stderr"] for name, entry in summary["metrics"].items()}
    assert errors == {"acc": 0, "acc_valid": None, "invalid": 0, "macro_f1": None, "macro_f1_valid": None}, "intervals are our own"


@pytest.mark.parametrize("name", LABELS)
def test_likeliest_label(ask, name):
    lm = Scripted(choice=lambda document: document["label"] if int(document["id"][-1]) < 4 else (document["label"] + 1) % 2)
    found, samples = ask(f"sl_{name}_mc", lm)
    assert found["acc"] == pytest.approx(4 / 6)
    generated = Scripted(lambda document, run: "")
    ask(f"sl_{name}_gen", generated)
    assert lm.prompts == generated.prompts, "both kinds ask the same"
    assert [arguments[1] for arguments in samples[0]["arguments"]] == [f" {label}" for label in LABELS[name]]


def test_multirc(ask):
    answers = [" 1", "1, 2", "vsi", "", "1, 1, 1, " * 20, "Pravilni odgovor: 1"]
    found, samples = ask("sl_multirc_gen", Scripted(lambda document, run: answers[int(document["id"].split(":")[1])]))
    assert (found["acc"], found["invalid"]) == (3 / 6, 2 / 6)
    assert found["acc_valid"] == pytest.approx(3 / 4)
    assert found["f1_answers"] == pytest.approx(2 * 4 / (5 + 6))
    assert "1) rdeč\n2) moder\n3) zelen\nŠtevilke pravilnih odgovorov: 1\n\n" in samples[0]["doc"]["prompt"]
    everything, _ = ask("sl_multirc_mc", Scripted(choice=lambda document: document["label"]))
    assert (everything["acc"], everything["exact_match"], everything["f1_answers"]) == (1.0, 1.0, 1.0)
    never, _ = ask("sl_multirc_mc", Scripted(choice=lambda document: 0))
    assert (never["acc"], never["exact_match"], never["f1_answers"]) == (pytest.approx(2 / 3), 0.0, 0.0)


@pytest.mark.parametrize("k", [0, 3, 5, 10])
def test_senta(ask, k):
    lm = Scripted(lambda document, run: f" {document['references'][0]}" if document["id"] != "test:0" else "")
    found, samples = ask(f"sl_senta_{k}shot", lm)
    assert found["empty"] == pytest.approx(1 / 6)
    assert found["sari"] == pytest.approx((5 * 100 + samples[0]["sari_empty"]) / 6)
    assert found["sari_empty"] < found["sari_copy"] < found["sari"]
    assert lm.prompts[1].count("Poenostavljen stavek:") == k + 1
    asked = "Poenostavi naslednji stavek.\nStavek: Hiša"
    assert lm.prompts[1].startswith(asked) and lm.prompts[1].count(asked) == k + 1, "the instruction is added to each example"


def test_hellaswag_is_without_markup():
    """As lm-eval's own and ITA-Bench's public task."""
    assert _without_brackets(" [header] Take it. [title] Now [step] go. ") == " Take it. Now go."


@pytest.mark.parametrize("language", ["it", "en"])
@pytest.mark.parametrize("name", ["arc_easy", "boolq", "hellaswag", "mmlu", "piqa", "sciq"])
def test_ita_bench(ask, name, language):
    """SAVA, 4.3: "the translated section of ITA-Bench", "in a 0-shot scenario"; BoolQ and HellaSwag in the wording of its public tasks."""
    lm = Scripted(choice=lambda document: 0)
    found, samples = ask(f"itabench_{name}_{language}", lm)
    assert found["acc"] == 0.5
    assert [sample["doc"]["id"] for sample in samples] == [f"test:{n}" for n in range(NUM_EVALUATED)], "the same items in both languages"
    expected = {
        "it": {
            "arc_easy": "Domanda: Che cosa 0?\nRisposta:",
            "boolq": "Un testo.\nDomanda: Che cosa 0?\nRisposta (sì o no):",
            "hellaswag": "Cielo: Il sole",
        },
        "en": {"mmlu": "Question: What 0?\nA. water\nB. fire\nAnswer:", "boolq": "A text.\nQuestion: What 0?\nAnswer (yes or no):"},
    }
    assert lm.prompts[0] == expected[language].get(name, lm.prompts[0])
    choices = {"boolq": {"it": ["sì", "no"], "en": ["yes", "no"]}, "mmlu": {"it": ["A", "B"], "en": ["A", "B"]}}
    assert samples[0]["doc"]["choices"] == choices.get(name, {"it": ["acqua", "fuoco"], "en": ["water", "fire"]})[language]


def test_a_label_that_is_no_choice_is_refused(tmp_path):
    folder = tmp_path / "it" / "itabench"
    folder.mkdir(parents=True)
    folder.joinpath("piqa.jsonl").write_text('{"id": "p", "label": 2, "it": {"question": "?", "choices": ["a", "b"]}}\n')
    with pytest.raises(ValueError, match=r"^the row p has the label 2; expected the number of one of its 2 choices, from 0$"):
        find_tasks(["itabench_piqa_it"], metadata={"data": str(tmp_path)})


def test_squad_it(ask):
    answers = ["1900", "nel 1910", "nel 1920!", "boh", "", "1950 " * 100]
    lm = Scripted(lambda document, run: answers[int(document["id"][-1])])
    found, _ = ask("squad_it", lm)
    # Words of the first right answer: all, half of two (2/3), the same (2/3), none, none, 1 of 100 (2/101).
    by_hand = (1 + 2 / 3 + 2 / 3 + 0 + 0 + 2 / 101) / 6
    assert found["rougeL_first"] == pytest.approx(100 * by_hand)
    assert found["rougeL_max"] == pytest.approx(100 * (1 + 1 + 1 + 2 / 101) / 6)
    assert found["exact_match"] == pytest.approx(3 / 6)
    assert found["empty"] == pytest.approx(1 / 6)
    assert lm.kwargs["until"] == ["\n\n"]
    assert lm.prompts[0].count("Contesto:") == 3


@pytest.mark.parametrize("pair", ["en_it", "it_en", "en_sl", "sl_en"])
def test_flores_few_shot(ask, pair):
    source, target = pair.split("_")
    lm = Scripted(lambda document, run: document["references"][0])
    found, samples = ask(f"flores_{pair}", lm)
    assert (found["chrf"], found["chrf_sentence"]) == (pytest.approx(100), 100)
    assert found["bleu"] == pytest.approx(100)
    assert 0 < found["chrf_sentence_copy"] < 100
    assert samples[0]["doc"]["source"].startswith(f"{source} 0")
    assert samples[0]["doc"]["references"][0].startswith(f"{target} 0")
    assert lm.prompts[0].count("Translation:") == 6, "five examples from dev and the question"
    assert all(identity.startswith("dev:") for identity in samples[0]["doc"]["shot_ids"])
    silent, _ = ask(f"flores_{pair}", Scripted(lambda document, run: "\n"))
    assert (silent["chrf"], silent["bleu"], silent["empty"]) == (0.0, 0.0, 1.0)


@pytest.mark.some(5)
@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("mt_")])
def test_zero_shot_translation(ask, name):
    _, source, target = name.split("_")
    lm = Scripted(lambda document, run: document["references"][0] if run < 3 else "")
    found, samples = ask(name, lm)
    assert found["chrf_sentence"] == pytest.approx(60)
    # Runs of 100, 100, 100, 0, 0: variance 12000 / 4.
    assert found["chrf_sentence_sd"] == pytest.approx(3000**0.5)
    settings = {"until": ["\n"], "max_gen_toks": 128, "do_sample": True, "temperature": 0.8, "top_k": 40, "top_p": 0.9}
    assert lm.kwargs == {**settings, "repetition_penalty": 1.1}
    assert lm.prompts[0].endswith(f"\n{source} 0: Dober dan, hiša. =")
    assert samples[0]["doc"]["references"] == [f"{target} 0: Dober dan, hiša."]
    assert len(ask(name, lm, items=2)[1]) == 2


@pytest.mark.some(4)
@pytest.mark.parametrize("language", LANGUAGES[3:])
def test_summaries(ask, language):
    lm = Scripted(lambda document, run: document["references"][0] if run else "")
    found, _ = ask(f"sum_{language}", lm)
    assert (found["rougeL"], found["empty"]) == (pytest.approx(80), pytest.approx(0.2))
    assert "Članek 0. Članek 0." in lm.prompts[0]


def test_summaries_without_a_tokenizer(monkeypatch, tmp_path):
    write_rows(tmp_path)
    hugging_face_tokenizer.cache_clear()
    monkeypatch.delenv("SCION_ROUGE_TOKENIZER", raising=False)
    with pytest.raises(ValueError, match=r"^ROUGE of summaries needs a tokenizer for all scripts: give --rouge-tokenizer"):
        find_tasks(["sum_th"], metadata={"data": str(tmp_path)})
    monkeypatch.setenv("SCION_ROUGE_TOKENIZER", str(tmp_path / "none"))
    with pytest.raises(ValueError, match=r"none of ROUGE does not exist$"):
        find_tasks(["sum_th"], metadata={"data": str(tmp_path)})


def test_summaries_are_cut_as_by_mt5(monkeypatch, tmp_path):
    """Whose folder has SentencePiece's file alone, and no tokenizer.json."""
    text = (ROOT / "recipes/demo_text/sl.train.txt").read_text(encoding="utf-8").splitlines()
    SentencePieceTrainer.train(
        sentence_iterator=iter(text),
        model_prefix=str(tmp_path / "spiece"),
        vocab_size=400,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        minloglevel=2,
    )
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "T5Tokenizer"}')
    monkeypatch.setenv("SCION_ROUGE_TOKENIZER", str(tmp_path))
    hugging_face_tokenizer.cache_clear()
    model = SentencePieceProcessor(model_file=str(tmp_path / "spiece.model"))
    assert hugging_face_tokenizer().tokenize(text[3]) == model.encode(text[3], out_type=str)
    hugging_face_tokenizer.cache_clear()


REAL = {  # task -> evaluated items among the real rows
    "sl_boolq_gen": 17, "sl_cb_gen": 50, "sl_copa_gen": 90, "sl_rte_gen": 27, "sl_wsc_gen": 90, "sl_si_nli_gen": 507,
    "sl_multirc_gen": 33,
}  # fmt: skip


KINDS = ("right", "wrong", "invalid", "empty", "endless")


def kind_of(document) -> str:
    return KINDS[sum(map(ord, document["id"])) % len(KINDS)]


def answer_of(document, run):
    """Every kind of answer that a model may give, each to a fifth of the rows."""
    if "right" in document:  # MultiRC: all numbers of right answers, or all others
        right = document["right"]
        wrong = sorted(set(range(1, len(document["choices"]) + 1)) - set(right)) or right[:-1]
        texts = [", ".join(map(str, numbers)) for numbers in (right, wrong)]
    else:
        choices, label = document["choices"], document["label"]
        texts = [choices[label], choices[(label + 1) % len(choices)]]
    return [f" {texts[0]}", texts[1], "Tega pa res ne vem", "", ENDLESS][KINDS.index(kind_of(document))]


@pytest.mark.some(4)
@pytest.mark.parametrize("task", REAL)
def test_real_rows_are_asked_and_scored(ask, shared_data, task):
    """As counted by hand; examples never from an evaluated group."""
    lm = Scripted(answer_of)
    found, samples = ask(task, lm, data=shared_data / "eval")
    assert len(samples) == REAL[task]
    evaluated = {sample["doc"]["id"] for sample in samples} | {sample["doc"]["group"] for sample in samples}
    assert not evaluated & {identity for sample in samples for identity in sample["doc"]["shot_ids"]}
    kinds = [kind_of(sample["doc"]) for sample in samples]
    assert set(kinds) == set(KINDS)
    endless_is_da = "boolq" in task or "wsc" in task
    right = sum(k == "right" or (k == "endless" and endless_is_da and s["doc"]["label"] == 0) for k, s in zip(kinds, samples))
    invalid = sum(k in ("invalid", "empty") or (k == "endless" and not endless_is_da) for k in kinds)
    assert found["acc"] == pytest.approx(right / len(samples))
    assert found["invalid"] == pytest.approx(invalid / len(samples))
    assert found["acc_valid"] == pytest.approx(right / (len(samples) - invalid))
    if task == "sl_wsc_gen":
        assert all(sample["doc"]["prompt"].count("**") == 4 * 5 + 4 * 5 + 1 for sample in samples), "four marks, and four in the question"
