"""Small sets in the forms in which their publishers ship them, with text of our own, except where real rows are handed in."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

Row = dict[str, Any]
FLORES = ("eng_Latn", "ita_Latn", "slv_Latn", "arb_Arab", "deu_Latn", "ell_Grek", "hin_Deva", "jpn_Jpan", "mya_Mymr", "sin_Sinh", "swh_Latn", "tel_Telu", "tha_Thai")  # fmt: skip
XLSUM = ("arabic", "burmese", "hindi", "japanese", "sinhala", "swahili", "telugu", "thai")
NUM = 6


def json_lines(rows: Iterable[Row]) -> bytes:
    """Rows as JSON Lines."""
    return "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows).encode()


def write_zip(path: Path, members: Mapping[str, bytes]) -> Path:
    """A zip file of these members."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def write_tar(path: Path, members: Mapping[str, bytes]) -> Path:
    """A tar file of these members, packed as its name says."""
    with tarfile.open(path, f"w:{path.suffix[1:]}") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def tsv(rows: Iterable[Row]) -> bytes:
    """Rows as tab-separated values with a header, quoted where needed."""
    rows = list(rows)
    stream = io.StringIO(newline="")
    writer = csv.DictWriter(stream, list(rows[0]), delimiter="\t", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue().encode()


def write_superglue(folder: Path, rows_of: Mapping[str, Mapping[str, list[Row]]]) -> Path:
    """The archive of CLARIN.SI: a folder per set, a file per split.

    Args:
        rows_of: set -> split -> published rows.
    """
    members = {
        f"SuperGLUE-HumanT/json/{name}/{split}.jsonl": json_lines(rows)
        for name, splits in rows_of.items()
        for split, rows in splits.items()
    }
    return write_zip(folder / "SuperGLUE-HumanT.zip", members)


def superglue_rows() -> dict[str, dict[str, list[Row]]]:
    """Rows of our own for all six sets; the test rows have no labels, but those of COPA."""
    made = {
        "BoolQ": lambda n: {"passage": f"Grad {n} stoji na hribu.", "question": f"Ali stoji grad {n}?", "label": n % 2 == 0},
        "CB": lambda n: _pair(n) | {"label": ("entailment", "contradiction", "neutral")[n % 3]},
        "RTE": lambda n: _pair(n) | {"label": ("entailment", "not_entailment")[n % 2]},
        "COPA": lambda n: (
            {
                "premise": f"Reka {n} je narasla.",
                "choice1": "Deževalo je.",
                "choice2": "Sijalo je sonce.",
                "question": "cause",
                "label": n % 2,
            }
        ),
        "WSC": lambda n: {
            "text": f"Ana je izgubila {n} njeno knjigo.",
            "target": {"span1_text": "Ana", "span1_index": 0, "span2_text": "njeno", "span2_index": 4},
            "label": n % 2 == 0,
        },
        "MultiRC": lambda n: {"version": 1.1, "passage": _multirc_passage(n)},
    }
    rows = {name: {split: [{"idx": n, **make(n)} for n in range(NUM)] for split in ("train", "val", "test")} for name, make in made.items()}
    for name, splits in rows.items():
        for row in splits["test"] if name != "COPA" else ():
            row.pop("label", None)
            if name == "MultiRC":  # of the test rows questions and answers are lists
                row["passage"]["questions"] = [
                    {**question, "answers": [{"text": answer["text"], "idx": answer["idx"]} for answer in question["answers"].values()]}
                    for question in row["passage"]["questions"].values()
                ]
    return rows


def _pair(number: int) -> Row:
    return {"premise": f"Na mizi je {number} jabolk.", "hypothesis": f"Jabolk je {number}."}


def _multirc_passage(number: int) -> Row:
    questions = {
        str(n): {
            "question": "Kakšen je dom?",
            "idx": 2 * number + n,
            "answers": {
                "0": {"text": "rdeč", "label": "1,0", "idx": 10 * number + 2 * n},
                "1": {"text": "moder", "label": 0.0, "idx": 10 * number + 2 * n + 1.0},
            },
        }
        for n in range(2)
    }
    return {"text": f"Dom {number} je rdeč.", "questions": questions}


def write_si_nli(folder: Path, rows_of: Mapping[str, list[Row]]) -> Path:
    """The archive of CLARIN.SI: a TSV per split, with annotators' columns; the test has an empty label.

    Args:
        rows_of: split -> rows with pair_id, premise, hypothesis and label.
    """
    members = {
        f"SI-NLI/{split}.tsv": tsv({**row, "annotation1": row["label"], "annotator1_id": "annotator_C"} for row in rows)
        for split, rows in rows_of.items()
    }
    return write_zip(folder / "SI-NLI.zip", members)


def si_nli_rows(*, test_labels: bool) -> dict[str, list[Row]]:
    """Rows of our own, among them quotes, a tab and a line end within a premise."""
    labels = ("entailment", "neutral", "contradiction")
    rows = {
        split: [
            {"pair_id": f"P{split}{n}", "premise": f'Rekla je "{n}\tdni"\nin šla ({split}).', **_label(labels[n % 3], n)}
            for n in range(NUM)
        ]
        for split in ("train", "dev", "test")
    }
    for row in rows["test"] if not test_labels else ():
        row["label"] = ""
    return rows


def _label(label: str, number: int) -> Row:
    return {"hypothesis": f"Šla je čez {number} dni.", "label": label}


def write_squad_it(folder: Path, name: str, questions: Iterable[Row]) -> Path:
    """The published JSON, nested and packed, of rows with id, context, question and answers; the groups are articles and paragraphs."""
    articles: dict[str, dict[str, Row]] = {}
    for row in questions:
        article, paragraph = row["group"].split(":")[-2:]
        kept = articles.setdefault(article, {}).setdefault(paragraph, {"context": row["context"], "qas": []})
        answers = [{"text": text, "answer_start": 0} for text in row["answers"] for _ in range(2)]  # annotators agree
        kept["qas"].append({"id": row["id"].removeprefix("squad_it:"), "question": row["question"], "answers": answers})
    data = [{"title": f"A{article}", "paragraphs": list(paragraphs.values())} for article, paragraphs in articles.items()]
    path = folder / f"SQuAD_it-{name}.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"version": "1.1", "data": data}).encode()))
    return path


def write_flores(
    folder: Path, *, short: str | None = None, sentence: Callable[[str, str, int], str] = lambda *named: "{} {} {}\u2028a".format(*named)
) -> Path:
    """The published tar file: one line per sentence, a file per language and split, and a table of articles beside them.

    Args:
        short: a language whose file lacks a line.
        sentence: of language, split and number.
    """
    members = {}
    for split in ("dev", "devtest"):
        for language in FLORES:
            lines = [sentence(language, split, n) for n in range(NUM - (language == short))]
            members[f"./flores200_dataset/{split}/{language}.{split}"] = "".join(f"{line}\n" for line in lines).encode()
        about = [{"URL": f"https://en.wikinews.org/{split}/{n // 2}", "domain": "wikinews", "topic": "x"} for n in range(NUM)]
        members[f"./flores200_dataset/metadata_{split}.tsv"] = tsv(about)
    return write_tar(folder / "flores200_dataset.tar.gz", members)


def write_xlsum(folder: Path, *, article: Callable[[str, int], tuple[str, str]] = lambda _, n: (f"dolgo {n}. " * 3, f"kratko {n}")) -> None:
    """The published tar files, one per language.

    Args:
        article: text and summary, of language and number.
    """
    for language in XLSUM:
        made = [article(language, n) for n in range(NUM)]
        rows = [
            {"id": f"{language}-{n}", "url": "u", "title": "t", "summary": summary, "text": text} for n, (text, summary) in enumerate(made)
        ]
        members = {f"{language}_{split}.jsonl": json_lines(rows) for split in ("train", "val", "test")}
        path = folder / f"{language}_XLSum_v2.0.tar.bz2"
        write_tar(path, members)
        assert bz2.decompress(path.read_bytes())


def write_mlsum(folder: Path) -> Path:
    """The published zip file of the German test rows."""
    rows = [{"text": f"Langer Text {n}.", "summary": f"Kurz {n}.", "topic": "a", "url": "u", "title": "t", "date": "d"} for n in range(NUM)]
    return write_zip(folder / "de_test.zip", {"de_test.jsonl": json_lines(rows)})


def write_greeksum(
    folder: Path, *, article: Callable[[int], tuple[str, str]] = lambda n: (f"Ένα, μεγάλο\nκείμενο {n}.", f"Σύντομο {n}.")
) -> Path:
    """What the authors' script leaves, as a table.

    Args:
        article: text and summary, of its number.
    """
    path = folder / "greeksum_test.csv"
    lines = "".join('"{}",{}\n'.format(*article(n)) for n in range(NUM))
    path.write_text(f"article,abstract\n{lines}", encoding="utf-8")
    return path


def write_senta(folder: Path) -> Path:
    """Pairs of a sentence and a simpler one, of which one sentence has two."""
    rows = [{"complex": f"Hiša {n}, ki stoji ob reki, je stara.", "simple": f"Hiša {n} je stara."} for n in range(NUM)]
    rows.append({"complex": rows[0]["complex"], "simple": "Hiša 0 stoji ob reki."})
    (folder / "senta_test.jsonl").write_bytes(json_lines(rows))
    path = folder / "textSimplification.json"
    path.write_text(json.dumps([{"kompleksni": f"Stara hiša {n}.", "enostavni": [f"Hiša {n}."]} for n in range(NUM)]), encoding="utf-8")
    return path


def write_itabench(folder: Path) -> None:
    """Parquet files below a folder per set, as the hub has them."""
    import pyarrow
    from pyarrow import parquet

    for name, file in _ITABENCH.items():
        rows = [_itabench_row(name, n) for n in range(NUM)]
        path = folder / f"{name}_italian" / file
        path.parent.mkdir(parents=True)
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)


_ITABENCH = {
    "arc": "easy/test-00000-of-00001.parquet",
    "boolq": "data/validation-00000-of-00001.parquet",
    "hellaswag": "data/validation-00000-of-00001.parquet",
    "mmlu": "data/test-00000-of-00001.parquet",
    "piqa": "data/validation-00000-of-00001.parquet",
    "sciq": "data/test-00000-of-00001.parquet",
}


def _itabench_row(name: str, number: int) -> Row:
    metadata = {"category": "question", "subject": "anatomy", "passage": f"Text {number}.", "passage_translation": f"Testo {number}."}
    row = {
        "id": f"{name}_{number}",
        "input": f"What is {number}?",
        "input_translation": f"Che cos'è {number}?",
        "choices": ["water", "fire"],
        "choices_translation": ["acqua", "fuoco"],
        "label": str(number % 2),
        "metadata": metadata | {"activity_label": "Sky", "activity_label_translation": "Cielo"},
    }
    if name == "boolq":
        return row | {"label": str(number % 2 == 0), "choices": ["yes", "no"]}
    if name == "sciq" and number == 0:
        row["metadata"]["passage"] = row["metadata"]["passage_translation"] = None
    return row


def write_wikiann(folder: Path) -> None:
    """Parquet files of the hub for Slovene, XTREME's archives for English, a file of Glot500 for Croatian."""
    import pyarrow
    from pyarrow import parquet

    rows = [{"tokens": ["Ana", "je", "v", "Rimu"], "ner_tags": [1, 0, 0, 5], "langs": ["sl"] * 4, "spans": ["PER: Ana"]}] * NUM
    (folder / "wikiann" / "sl").mkdir(parents=True)
    for split in ("train", "validation", "test"):
        parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "wikiann" / "sl" / f"{split}-00000-of-00001.parquet")
    lines = "en:Ana\tB-PER\nen::\tO\nen:New York\u00a0City\tB-LOC\n\n" * NUM
    write_tar(folder / "en.tar.gz", {name: lines.encode() for name in ("train", "dev", "test")})
    (folder / "test-hrv_Latn.tsv").write_text("Ana\tB-PER\n:\tO\n\n", encoding="utf-8")


def write_ud(folder: Path) -> None:
    """Two treebanks of English and one of Slovene, with words written together, one that is not written, and one without text."""
    sentence = (
        "# text = Don't go.\n1-2\tDon't\t_\t_\t_\t_\t_\t_\t_\t_\n1\tDo\tdo\tAUX\t_\t_\t0\troot\t_\t_\n2\tn't\tnot\tPART\t_\t_\t1\tx\t_\t_\n"
        "2.1\tyou\tyou\tPRON\t_\t_\t_\t_\t_\t_\n3\tgo\tgo\tVERB\t_\t_\t1\tx\t_\t_\n4\t.\t.\tPUNCT\t_\t_\t1\tx\t_\t_\n\n"
    )
    hidden = "1\t_\t_\tNOUN\t_\t_\t0\troot\t_\t_\n2\t_\t_\tVERB\t_\t_\t1\tx\t_\t_\n\n"
    for treebank, name, text in (("EWT", "en_ewt", sentence), ("GUM", "en_gum", sentence + hidden), ("SSJ", "sl_ssj", sentence)):
        (folder / f"UD_{treebank}").mkdir()
        for split in ("train", "dev", "test"):
            (folder / f"UD_{treebank}" / f"{name}-ud-{split}.conllu").write_text(text * 2, encoding="utf-8")


def write_taxi1500(folder: Path) -> None:
    """Verses of English, and the test rows of Slovene."""
    topics = ("Recommendation", "Faith", "Description", "Sin", "Grace", "Violence")
    lines = "".join(f"400010{n:02}\t{topics[n % 6]}\tVerse {n}.\n" for n in range(NUM))
    for split in ("train", "dev", "test"):
        (folder / f"eng_{split}.tsv").write_text(lines, encoding="utf-8")
    (folder / "slv_test.tsv").write_text(f"id\tclassification\tverse\n{lines}", encoding="utf-8")
