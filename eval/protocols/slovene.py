"""Slovene SuperGLUE and SI-NLI as the GaMS paper asks them, few-shot and in Slovene.

Labels, field names, instructions and the forms of valid answers are those of the paper's published framework (slobench_evaluation,
Apache-2.0), so that scores compare.  Otherwise than there, examples never come from an evaluated passage, every model stops at a line
end under one generous cap, and `12` or `Danes` are no answers.

The framework was reworded after the paper's results: `PROTOCOLS` has its prompts of October 2024 (commit 9920b2e), which its authors
call the best, and `JULY_2024` those of July 2024 (commit e6b274c), the last before the paper, where they differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from eval.protocols.protocol import Protocol, dataset_of
from eval.protocols.rows import Row, Rows, field, label_index

if TYPE_CHECKING:
    from datasets import DatasetDict

_YES_NO = {True: 0, False: 1}
_ENTAILMENT = {"entailment": 0, "not_entailment": 1}
_COMMITMENT = {"entailment": 0, "contradiction": 1, "neutral": 2}
_INFERENCE = {"entailment": 0, "neutral": 1, "contradiction": 2}
_COPA = {0: 0, 1: 1}
_MULTIRC_LABELS = {"0": 0, "1": 1}


def _choose(
    file: str,
    question: Callable[[Row], str],
    choices: Sequence[str],
    labels: Mapping[Any, int],
    instruction: str,
    *,
    article: str | None = None,
) -> Protocol:
    """A set whose answer is one of a few labels.

    Args:
        article: field of the long text.
    """
    return Protocol(
        evaluated=Rows(file, "val"),
        examples=Rows(file, "train"),
        question=question,
        answer=lambda row: choices[label_index(row, labels)],
        scored=lambda row: {"choices": list(choices), "label": label_index(row, labels)},
        instruction=lambda row: instruction,
        article=None if article is None else lambda row: str(field(row, article)),
    )


def _boolq_question(row: Row) -> str:
    return f"Besedilo: {field(row, 'passage')}\nVprašanje: {field(row, 'question')}\nOdgovor:"


def _cb_question_of_july(row: Row) -> str:
    hypothesis = str(field(row, "hypothesis")).rstrip(".")
    return f"Besedilo: {field(row, 'premise')}\nHipoteza: {hypothesis}. Drži ali ne drži?\nOdgovor:"


def _pair_question(row: Row, *, premise: str, asked: str) -> str:
    return f"{premise}: {field(row, 'premise')}\nHipoteza: {field(row, 'hypothesis')}{asked}\nOdgovor:"


def _copa_question(row: Row) -> str:
    asked = "vzrok za dano trditev" if field(row, "question") == "cause" else "posledico dane trditve"
    hypotheses = f"Hipoteza 1: {field(row, 'choice1')}\nHipoteza 2: {field(row, 'choice2')}"
    return f"Trditev: {field(row, 'premise')}\n{hypotheses}\nŠtevilka hipoteze, ki predstavlja {asked}:"


def _copa_instruction(row: Row) -> str:
    asked = "vzrok" if field(row, "question") == "cause" else "posledica"
    return (
        f"Predstavljena je trditev in dve hipotezi. Ugotovi, katera hipoteza je {asked} za dano trditev."
        " Napiši le številko ustrezne hipoteze."
    )


def _copa_instruction_of_july(row: Row) -> str:
    asked = "vzrok za dano trditev" if field(row, "question") == "cause" else "posledico dane trditve"
    return f"Podana je trditev ter dve hipotezi. Poišči hipotezo, ki predstavlja {asked}. Izpiši zgolj številko ustrezne hipoteze."


def _wsc_question(row: Row) -> str:
    target = field(row, "target")
    first, second = target["span1_text"], target["span2_text"]
    return f"Besedilo: {_marked(row)}\nVprašanje: Ali se **{second}** nanaša na **{first}**?\nOdgovor:"


def _wsc_question_of_july(row: Row) -> str:
    target = field(row, "target")
    asked = f"Ali se besedna zveza *{target['span2_text']}* v zgornjem besedilu nanaša na besedno zvezo *{target['span1_text']}*?"
    return f"Besedilo: {_marked(row, mark='*')}\nVprašanje: {asked}\nOdgovor:"


def _marked(row: Row, *, mark: str = "**") -> str:
    """The text with both spans between marks.

    The rows count words, but a few are off after translation, so the occurrence nearest to that word is taken.
    """
    text, target = str(field(row, "text")), field(row, "target")
    places = []
    for span in ("span1", "span2"):
        words, index = str(target[f"{span}_text"]), int(target[f"{span}_index"])
        starts = [start for start in range(len(text)) if text.startswith(words, start)]
        if not starts:
            raise ValueError(f"the row {row['id']} marks {words!r}, which is not in its text")
        start = min(starts, key=lambda s: abs(len(text[:s].split()) - index))
        places += [start, start + len(words)]
    for place in sorted(places, reverse=True):  # from the end, so that no mark moves another's place
        text = f"{text[:place]}{mark}{text[place:]}"
    return text


def _multirc_questions(rows: Sequence[Row]) -> list[Row]:
    """One row per question of each passage, answers in the order of their numbers.

    Translation left some questions and answers without text: such answers are left out, and questions without text or answers too.

    Raises:
        ValueError: if an answer has no label, or one that is neither 0 nor 1.
    """
    return [
        {**asked, "labels": [_multirc_label(answer, asked["id"]) for answer in answers]} for asked, _, answers in _shown_questions(rows)
    ]


def unlabelled_questions(rows: Sequence[Row]) -> list[Row]:
    """The same of test rows, with the published numbers of passage, question and answers, by which SloBench knows them.

    Raises:
        ValueError: if a question or an answer has no such number.
    """
    found = []
    for asked, question, shown in _shown_questions(rows):
        hidden = [answer for _, answer in numbered(question["answers"]) if not answer.get("text")]
        if any(part.get("idx") is None for part in (question, *shown, *hidden)):
            raise ValueError(f"the question {asked['id']} has no idx, or one of its answers; SloBench knows answers by these numbers")
        indices = [[int(answer["idx"]) for answer in answers] for answers in (shown, hidden)]
        numbers = {
            "passage": int(asked["group"].rpartition(":")[2]),
            "question": int(question["idx"]),
            "answers": indices[0],
            "hidden": indices[1],
        }
        found.append({**asked, "numbers": numbers})
    return found


def _shown_questions(rows: Sequence[Row]) -> Iterator[tuple[Row, Mapping[str, Any], list[Mapping[str, Any]]]]:
    """What is asked of each question that has text, with the published question and its answers that have text."""
    for row in rows:
        passage = field(row, "passage")
        for number, question in numbered(passage["questions"]):
            answers = [answer for _, answer in numbered(question["answers"]) if answer.get("text")]
            if question.get("question") and answers:
                asked = {
                    "id": f"{row['id']}:{number}",
                    "group": str(row.get("group", row["id"])),
                    "passage": passage["text"],
                    "question": question["question"],
                    "answers": [answer["text"] for answer in answers],
                }
                yield asked, question, answers


def numbered(published: Any) -> list[tuple[str, Any]]:
    """Questions or answers in their order: published with numbers as names, the test rows as lists."""
    if isinstance(published, Mapping):
        return sorted(published.items(), key=lambda item: int(item[0]))
    return [(str(number), value) for number, value in enumerate(published)]


def _multirc_label(answer: Mapping[str, Any], identity: str) -> int:
    # The files hold 1, 1.0, "1.0" and "1,0".
    text = str(answer.get("label", "")).replace(",", ".").removesuffix(".0")
    return label_index({"id": f"{identity}, answer {answer['text']!r}", "label": text or None}, _MULTIRC_LABELS)


def _multirc_question(row: Row, *, after_passage: str = "\n") -> str:
    listed = "\n".join(f"{number}) {answer}" for number, answer in enumerate(row["answers"], start=1))
    asked = f"Besedilo: {row['passage']}{after_passage}Vprašanje: {row['question']}"
    return f"{asked}\nSeznam možnih odgovorov:\n{listed}\nŠtevilke pravilnih odgovorov:"


def _right_numbers(row: Row) -> list[int]:
    return [number for number, label in enumerate(row["labels"], start=1) if label]


def _multirc_answers(rows: Sequence[Row]) -> list[Row]:
    """One row per answer of each question: is it right?"""
    return [
        {**question, "id": f"{question['id']}:{number}", "question_id": question["id"], "candidate": answer, "label": label}
        for question in _multirc_questions(rows)
        for number, (answer, label) in enumerate(zip(question["answers"], question["labels"]))
    ]


def _candidate_question(row: Row) -> str:
    return f"Besedilo: {row['passage']}\nVprašanje: {row['question']}\nOdgovor: {row['candidate']}\nAli je odgovor pravilen?"


_SUPERGLUE = "sl/superglue_human"
_HOLDS = " Drži ali ne drži?"
PROTOCOLS = {
    "boolq": _choose(
        f"{_SUPERGLUE}/BoolQ",
        _boolq_question,
        ("Da.", "Ne."),
        _YES_NO,
        "Podano besedilo vključuje vprašanje. Na vprašanje odgovori samo z Da ali Ne, brez dodatnih razlag.",
        article="passage",
    ),
    "cb": _choose(
        f"{_SUPERGLUE}/CB",
        partial(_pair_question, premise="Besedilo", asked=_HOLDS),
        ("Drži.", "Ne drži.", "Ne vemo."),
        _COMMITMENT,
        "Imamo dano besedilo, hipotezo in vprašanje glede resničnosti te hipoteze. Odgovori z Drži, če je hipoteza skladna z besedilom,"
        " z Ne drži, če ni, in z Ne vemo, če resničnosti hipoteze ni mogoče ugotoviti iz besedila.",
        article="premise",
    ),
    "copa": Protocol(
        evaluated=Rows(f"{_SUPERGLUE}/COPA", "val"),
        examples=Rows(f"{_SUPERGLUE}/COPA", "train"),
        question=_copa_question,
        answer=lambda row: str(label_index(row, _COPA) + 1),
        scored=lambda row: {"choices": ["1", "2"], "label": label_index(row, _COPA)},
        instruction=_copa_instruction,
        like=lambda row: field(row, "question"),  # as the paper: causes before a cause
    ),
    "multirc": Protocol(
        evaluated=Rows(f"{_SUPERGLUE}/MultiRC", "val"),
        examples=Rows(f"{_SUPERGLUE}/MultiRC", "train"),
        prepare=_multirc_questions,
        article=lambda row: str(row["passage"]),
        question=_multirc_question,
        answer=lambda row: ", ".join(map(str, _right_numbers(row))),
        scored=lambda row: {"choices": row["answers"], "right": _right_numbers(row)},
        instruction=lambda row: (
            "Predstavljeno je besedilo, vprašanje vezano na to besedilo in seznam možnih odgovorov. Izpiši številke pravilnih odgovorov."
        ),
    ),
    "multirc_answers": Protocol(
        evaluated=Rows(f"{_SUPERGLUE}/MultiRC", "val"),
        examples=Rows(f"{_SUPERGLUE}/MultiRC", "train"),
        prepare=_multirc_answers,
        article=lambda row: str(row["passage"]),
        question=_candidate_question,
        answer=lambda row: ("Ne.", "Da.")[row["label"]],
        scored=lambda row: {"choices": ["Ne.", "Da."], "label": row["label"], "question_id": row["question_id"]},
        instruction=lambda row: "Predstavljeno je besedilo, vprašanje in možen odgovor. Odgovori z Da, če je odgovor pravilen, sicer z Ne.",
    ),
    "rte": _choose(
        f"{_SUPERGLUE}/RTE",
        partial(_pair_question, premise="Besedilo", asked=_HOLDS),
        ("Drži.", "Ne drži."),
        _ENTAILMENT,
        "Preveri, če hipoteza drži glede na dano besedilo. Če je resnična, napiši Drži, če ni, napiši Ne drži.",
        article="premise",
    ),
    "wsc": _choose(
        f"{_SUPERGLUE}/WSC",
        _wsc_question,
        ("Da.", "Ne."),
        _YES_NO,
        "Podano je besedilo z dvema označenima besednima zvezama z **. Vprašanje je, če se ena zveza nanaša na drugo."
        " Odgovori z Da ali Ne.",
    ),
    "si_nli": Protocol(
        evaluated=Rows("sl/si_nli_nc_dev", "val"),
        examples=Rows("sl/si_nli_nc_train", "train"),
        question=partial(_pair_question, premise="Predpostavka", asked=""),
        answer=lambda row: ("Sosledje.", "Nevtralnost.", "Nasprotovanje.")[label_index(row, _INFERENCE)],
        scored=lambda row: {
            "choices": ["Sosledje.", "Nevtralnost.", "Nasprotovanje."],
            "label": label_index(row, _INFERENCE),
        },
        instruction=lambda row: (
            "Preveri, ali hipoteza izhaja iz predpostavke (Sosledje), se ji upira (Nasprotovanje) ali pa ni mogoče določiti povezave"
            ' (Nevtralnost). Izberi eno od možnosti: "Sosledje", "Nasprotovanje" ali "Nevtralnost".'
        ),
    ),
}


def _reworded(name: str, instruction: Callable[[Row], str] | str, question: Callable[[Row], str] | None = None) -> Protocol:
    old = PROTOCOLS[name]
    asked = (lambda row: instruction) if isinstance(instruction, str) else instruction
    return replace(old, instruction=asked, question=question or old.question)


# MultiRC's passage stood above the examples there, which were questions about it with their answers; ours have passages of their own.
JULY_2024 = {
    "boolq": _reworded(
        "boolq",
        "Podano je besedilo in vprašanje, ki se navezuje na to besedilo. Odgovori na vprašanje zgolj z Da ali Ne. Odgovora ne pojasnjuj.",
    ),
    "cb": _reworded(
        "cb",
        "Podano je besedilo, hipoteza ter vprašanje o resničnosti te hipoteze. Odgovori z Drži, če je hipoteza resnična glede na podano"
        " besedilo, z Ne drži, če hipoteza ni resnična ter z Ne vemo, če se iz besedila ne da sklepati o resničnosti hipoteze.",
        _cb_question_of_july,
    ),
    "copa": _reworded("copa", _copa_instruction_of_july),
    "multirc": _reworded(
        "multirc",
        "Podano je besedilo, vprašanje, ki se navezuje na to besedilo ter seznam možnih odgovorov na to vprašanje."
        " Izpiši številke pravilnih odgovorov.",
        partial(_multirc_question, after_passage="\n\n"),
    ),
    "rte": _reworded(
        "rte",
        "Podano je besedilo in hipoteza. Povej ali je hipoteza resnična glede na podano besedilo. Odgovori z Drži, če je hipoteza resnična"
        " glede na besedilo oziroma z Ne drži, če ni.",
        partial(_pair_question, premise="Besedilo", asked=" Drži ali Ne drži?"),
    ),
    "wsc": _reworded(
        "wsc",
        "Podano je kratko besedilo, v katerem sta dve besedni zvezi označeni z **. Navedeno je tudi vprašanje, ali se ena besedna zveza"
        " nanaša na drugo. Na vprašanje odgovori zgolj z Da ali Ne.",
        _wsc_question_of_july,
    ),
    "si_nli": _reworded(
        "si_nli",
        "Podani sta predpostavka in hipoteza. Določi ali hipoteza pomensko sledi iz predpostavke (Sosledje), ji nasprotuje (Nasprotovanje)"
        " ali pa o relaciji med njima ni možno sklepati (Nevtralnost). Odgovori zgolj s"
        ' "Sosledje", "Nasprotovanje" ali "Nevtralnost".',
    ),
}
WORDINGS = {"2024-10": PROTOCOLS, "2024-07": JULY_2024}


def load(*, protocol: str, wording: str = "2024-10", **metadata: Any) -> DatasetDict:
    """Documents of one set.

    Args:
        wording: month of the framework's code whose prompts are asked, a key of `WORDINGS`.

    Raises:
        ValueError: as `documents`, and for a wording that there is not, of all sets or of this one.
    """
    return dataset_of(_protocol(protocol, wording), **metadata)


def _protocol(name: str, wording: str) -> Protocol:
    if wording not in WORDINGS:
        raise ValueError(f"there is no wording {wording!r}; there are {', '.join(WORDINGS)}")
    if name not in WORDINGS[wording]:
        known = ", ".join(WORDINGS[wording])
        raise ValueError(f"the wording of {wording} has no {name}, which only this project's wording has; it has {known}")
    return WORDINGS[wording][name]
