"""A folder of evaluation data in the papers' layout: a few rows of our own for every set."""

import json
from pathlib import Path

LANGUAGES = ["en", "it", "sl", "ar", "de", "el", "hi", "ja", "my", "si", "sw", "te", "th"]
NUM_EVALUATED = 6


def write_rows(folder: Path) -> Path:
    """Six evaluated rows and as many training rows of every set."""
    for file, rows in _files().items():
        path = folder / f"{file}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return folder


def _files() -> dict[str, list[dict]]:
    slovene = "sl/superglue_human"
    return {
        f"{slovene}/BoolQ": _rows(
            lambda n: {"passage": f"Grad {n} stoji na hribu.", "question": f"Ali stoji grad {n}?", "label": n % 2 == 0}
        ),
        f"{slovene}/CB": _rows(lambda n: _pair(n, ("entailment", "contradiction", "neutral")[n % 3])),
        f"{slovene}/RTE": _rows(lambda n: _pair(n, ("entailment", "not_entailment")[n % 2])),
        f"{slovene}/COPA": _rows(_copa),
        f"{slovene}/WSC": _rows(_wsc),
        f"{slovene}/MultiRC": _rows(_multirc),
        "sl/si_nli_nc_dev": _rows(lambda n: _pair(n, ("entailment", "neutral", "contradiction")[n % 3]), "dev"),
        "sl/si_nli_nc_train": _rows(lambda n: _pair(n, ("entailment", "neutral", "contradiction")[n % 3]), "train"),
        "sl/senta_test": _rows(_simplification, "test"),
        "sl/senta_train": _rows(_simplification, "train", count=12),
        "it/squad_it_test": _rows(_squad, "test"),
        "it/squad_it_train": _rows(_squad, "train"),
        "mt/flores_devtest": _rows(_sentence, "devtest"),
        "mt/flores_dev": _rows(_sentence, "dev"),
        **{f"it/itabench/{name}": _rows(_translated, "test") for name in ("arc_easy", "boolq", "hellaswag", "mmlu", "piqa", "sciq")},
        **{f"summarisation/{language}": _rows(_summary, "test") for language in LANGUAGES[3:]},
    }


def _rows(make, *splits: str, count: int = NUM_EVALUATED) -> list[dict]:
    return [
        {"id": f"{split}:{number}", "group": f"{split}:{number}", "split": split, **make(number)}
        for split in splits or ("train", "val")
        for number in range(count)
    ]


def _pair(number: int, label: str) -> dict:
    return {"premise": f"Na mizi je {number} jabolk.", "hypothesis": f"Jabolk je {number}.", "label": label}


def _copa(number: int) -> dict:
    causes = {"premise": f"Reka {number} je narasla.", "choice1": "Deževalo je.", "choice2": "Sijalo je sonce."}
    return {**causes, "question": "cause", "label": number % 2}


def _wsc(number: int) -> dict:
    target = {"span1_text": "Ana", "span1_index": 0, "span2_text": "njeno", "span2_index": 4}
    return {"text": f"Ana je izgubila {number} njeno knjigo.", "target": target, "label": number % 2 == 0}


def _multirc(number: int) -> dict:
    answers = {"0": {"text": "rdeč", "label": "1,0"}, "1": {"text": "moder", "label": 0.0}, "2": {"text": "zelen", "label": "0"}}
    return {"passage": {"text": f"Dom {number} je rdeč.", "questions": {"0": {"question": "Kakšen je dom?", "answers": answers}}}}


def _simplification(number: int) -> dict:
    return {"source": f"Hiša številka {number}, ki stoji ob reki, je stara.", "references": [f"Hiša {number} stoji ob reki. Je stara."]}


def _squad(number: int) -> dict:
    return {"context": f"La torre fu costruita nel 19{number}0.", "question": "Quando?", "answers": [f"19{number}0", f"nel 19{number}0"]}


def _sentence(number: int) -> dict:
    return {language: f"{language} {number}: Dober dan, hiša." for language in LANGUAGES}


def _translated(number: int) -> dict:
    one = {
        "question": f"Che cosa {number}?",
        "choices": ["acqua", "fuoco"],
        "passage": "Un testo.",
        "context": "Il sole",
        "activity_label": "Cielo",
    }
    other = {
        "question": f"What {number}?",
        "choices": ["water", "fire"],
        "passage": "A text.",
        "context": "The sun",
        "activity_label": "Sky",
    }
    return {"it": one, "en": other, "label": number % 2}


def _summary(number: int) -> dict:
    return {"text": f"Članek {number}. " * 3, "summary": f"Povzetek {number}."}
