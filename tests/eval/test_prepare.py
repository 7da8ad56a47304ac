"""Published evaluation sets become the rows that the tasks read: every form, counts against the papers, and no file that does harm."""

from __future__ import annotations

import contextlib
import io
import json
import os
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from common.artifacts import read_manifest
from common.command import arguments_of
from data_prep.reading.evaluation_sets import read_sets
from data_prep.tokenizers.reference_files import read_parallel
from eval.prepare import listing, main
from eval.protocols.rows import Rows, read_rows
from eval.running.task_runs import TASKS_DIR, find_tasks
from slurm.prefetch import main as prefetch
from tests.eval import published_forms as forms
from tests.eval.real_rows import read
from tests.eval.suite_rows import FROM_THE_HUB
from tests.refusals import refused

ALL = [one.name for one in read_sets()]


def _rows(folder: Path, file: str) -> list[dict]:
    return read(folder / f"{file}.jsonl.gz")


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every set, each in its publisher's form."""
    folder = tmp_path_factory.mktemp("published")
    forms.write_superglue(folder, forms.superglue_rows())
    forms.write_si_nli(folder, forms.si_nli_rows(test_labels=False))
    forms.write_squad_it(folder, "test", _questions(5))
    forms.write_squad_it(folder, "train", _questions(7))
    forms.write_flores(folder)
    forms.write_xlsum(folder)
    forms.write_mlsum(folder)
    forms.write_greeksum(folder)
    forms.write_senta(folder)
    forms.write_itabench(folder)
    forms.write_wikiann(folder)
    forms.write_ud(folder)
    forms.write_taxi1500(folder)
    return folder


def _questions(first: int) -> list[dict]:
    return [
        {"id": f"{first}{n}", "group": f"{first}{n}:0", "context": f"La torre {first}{n}.", "question": "Quando?", "answers": [f"19{n}0"]}
        for n in range(6)
    ]


@pytest.fixture(scope="module")
def prepared(published: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("prepared") / "eval_data"
    assert main([*ALL, "--source", str(published), "--output", str(output), "--sample"]) == 0
    return output


def test_every_task_of_the_papers_reads_what_is_prepared(prepared: Path) -> None:
    """All task files but our own completions; each asks at least one item."""
    others = ("completion", "heldout_text", "summarisation", *FROM_THE_HUB)
    names = sorted(path.stem for path in TASKS_DIR.rglob("*.yaml") if path.parent.name not in others)
    metadata = {"data": str(prepared), "shots": 2}
    tasks = find_tasks(names, metadata=metadata)
    assert len(tasks) > 50 and all(task.task.instances for task in tasks.values())
    copa = find_tasks(["sl_copa_gen"], metadata={**metadata, "split": "test"})["sl_copa_gen"]
    assert [instance.doc["id"] for instance in copa.task.instances][:1] == ["slsuperglue_COPA:test:0"]
    assert read_rows(prepared, Rows("summarisation/th"))[0] == {
        "id": "xlsum:thai-0", "group": "xlsum:thai-0", "split": "test", "text": "dolgo 0. " * 3, "summary": "kratko 0",
    }  # fmt: skip


def test_parallel_sentences_are_read_from_what_is_prepared(prepared: Path) -> None:
    """FLORES as data_prep.tokenizer_report takes it: all languages, and none of a row's other fields."""
    parallel = read_parallel(prepared / "mt/flores_dev.jsonl.gz")
    assert set(parallel) == {"en", "it", "sl", "ar", "de", "el", "hi", "ja", "my", "si", "sw", "te", "th"}
    assert parallel["my"][2] == _rows(prepared, "mt/flores_dev")[2]["my"] and len(parallel["my"]) == 6


def test_every_set_has_a_file_for_each_task_that_reads_it(prepared: Path) -> None:
    files = {rows.file for one in read_sets() for rows in one.rows if "{language}" not in rows.file}
    files |= {f"slobench/{name}" for name in ("BoolQ", "CB", "MultiRC", "RTE", "WSC", "SI-NLI")}  # test rows without labels
    files |= {f"encoders/ner/{name}" for name in ("eng", "hrv_Latn", "slv")}
    files |= {f"encoders/{task}/{name}" for task in ("pos", "taxi1500") for name in ("eng", "slv")}
    assert {path.relative_to(prepared).as_posix().removesuffix(".jsonl.gz") for path in prepared.rglob("*.jsonl.gz")} == files
    assert len(_rows(prepared, "sl/senta_test")) == 6  # seven pairs of six sentences
    assert _rows(prepared, "sl/senta_test")[0]["references"] == ["Hiša 0 je stara.", "Hiša 0 stoji ob reki."]
    assert _rows(prepared, "sl/senta_train")[0]["references"] == ["Hiša 0."]
    flores = _rows(prepared, "mt/flores_devtest")
    assert flores[3]["group"] == flores[2]["group"] != flores[4]["group"]
    assert flores[3]["sl"] == "slv_Latn devtest 3\u2028a"  # a line of a file ends at its line end alone
    boolq = _rows(prepared, "it/itabench/boolq")
    assert [row["label"] for row in boolq[:2]] == [0, 1] and boolq[0]["it"]["passage"] == "Testo 0."
    assert _rows(prepared, "it/itabench/sciq")[0]["it"]["passage"] == ""
    # The first paragraph of the training file is not that of the test: neither keeps the other from being an example.
    assert not {row["group"] for row in _rows(prepared, "it/squad_it_train")} & {
        row["group"] for row in _rows(prepared, "it/squad_it_test")
    }
    assert _rows(prepared, "summarisation/el")[1]["text"] == "Ένα, μεγάλο\nκείμενο 1."


def test_sets_of_many_languages_are_read_in_each_form(prepared: Path) -> None:
    """Names from the hub, XTREME and Glot500; words of treebanks as they are annotated; verses with their topics."""
    slovene = {"id": "wikiann:slv:val:1", "group": "wikiann:slv:val:1", "split": "val"}
    assert _rows(prepared, "encoders/ner/slv")[6] == {
        **slovene,
        "words": ["Ana", "je", "v", "Rimu"],
        "labels": ["B-PER", "O", "O", "B-LOC"],
    }
    english = _rows(prepared, "encoders/ner/eng")
    assert [row["split"] for row in english] == ["train"] * 6 + ["val"] * 6 + ["test"] * 6
    assert english[0]["words"] == ["Ana", ":", "NewYorkCity"] and english[0]["labels"] == ["B-PER", "O", "B-LOC"]
    assert [(row["words"], row["split"]) for row in _rows(prepared, "encoders/ner/hrv_Latn")] == [(["Ana", ":"], "test")]
    parts = _rows(prepared, "encoders/pos/eng")
    assert len(parts) == 12, "two treebanks; sentences whose text may not be passed on are none"
    assert parts[0]["words"] == ["Do", "n't", "go", "."] and parts[0]["labels"] == ["AUX", "PART", "VERB", "PUNCT"]
    assert {row["id"] for row in parts if row["split"] == "test"} == {
        f"ud:en_{t}-ud-test.conllu:{n}" for t, n in (("ewt", 1), ("ewt", 2), ("gum", 1), ("gum", 3))
    }
    assert _rows(prepared, "encoders/taxi1500/slv")[1] == {
        "id": "taxi1500:slv:test:40001001", "group": "taxi1500:slv:test:40001001", "split": "test", "text": "Verse 1.", "label": "Faith",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "file", "content", "sentence"),
    [
        ("wikiann", "test-slv.tsv", "Ana B-PER\n", "line 1 of test-slv.tsv is not a labelled word; expected a word, a tab and its label"),
        ("ud_pos", "sl_ssj-ud-test.conllu", "1\tAna\n", "line 1 of sl_ssj-ud-test.conllu is not a line of CoNLL-U; expected its ten columns"),
        ("taxi1500", "slv_test.tsv", "1\tFaith\n", "line 1 of slv_test.tsv has 2 columns; expected a number, a label and a verse"),
        ("taxi1500", "slv_test.tsv", "1\tHope\tVerse\n",
         "line 1 of slv_test.tsv has the label 'Hope'; known are Recommendation, Faith, Violence, Grace, Sin, Description"),
        ("taxi1500", "eng_test.tsv", "1\tSin\tVerse\n",
         "eng_test.tsv: test: 1 rows, but its publisher has 111; it is not the expected file: download the set again, or give --sample to prepare a sample of it"),
    ],
)  # fmt: skip
def test_labelled_lines_that_are_wrong(tmp_path: Path, name: str, file: str, content: str, sentence: str) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / file).write_text(content, encoding="utf-8")
    with refused(sentence):
        main([name, "--source", str(tmp_path / "source"), "--output", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


def test_test_rows_without_labels_are_left_out_and_said(prepared: Path) -> None:
    manifest = read_manifest(prepared)
    assert manifest is not None
    files = manifest.facts["files"]
    assert files["sl/superglue_human/CB"]["notes"][0] == (
        "test: its 6 rows have no label, which their publisher keeps private; stored separately in slobench/CB, for eval.slobench"
    )
    assert files["sl/superglue_human/MultiRC"]["counts"] == {"train": 12, "val": 12}  # questions, not passages
    assert files["sl/superglue_human/COPA"]["counts"] == {"train": 6, "val": 6, "test": 6}
    assert files["sl/superglue_human/COPA"]["notes"][-1] == "test: 6 rows, but GaMS, Table 3 has 500"
    assert {row["split"] for row in _rows(prepared, "sl/si_nli_nc_dev")} == {"dev"}
    # GaMS, Table 3: "MultiRC 2 333", "SI-NLI 5 998".
    assert files["slobench/MultiRC"]["notes"] == ["test: 12 questions, but GaMS, Table 3 has 333"]
    assert files["slobench/SI-NLI"]["notes"] == ["test: 6 rows, but GaMS, Table 3 has 998"]
    assert "label" not in _rows(prepared, "slobench/CB")[0] and "slobench/COPA" not in files
    assert set(manifest.files) == {f"{file}.jsonl.gz" for file in files}


def test_test_rows_with_labels_are_the_papers_test_set(tmp_path: Path) -> None:
    """GaMS, Table 3: "SI-NLI 5 998"."""
    rows = forms.si_nli_rows(test_labels=True)
    rows["test"] = [{**rows["test"][n % 6], "pair_id": f"P{n}"} for n in range(998)]
    rows["dev"] = [{**rows["dev"][n % 6], "pair_id": f"P{n}"} for n in range(547)]
    rows["train"] = [{**rows["train"][n % 6], "pair_id": f"P{n}"} for n in range(4392)]
    forms.write_si_nli(tmp_path, rows)
    assert main(["si_nli", "--source", str(tmp_path), "--output", str(tmp_path / "out")]) == 0
    manifest = read_manifest(tmp_path / "out")
    assert manifest is not None and manifest.facts["files"]["sl/si_nli_nc_dev"]["notes"] == []
    tests = read_rows(tmp_path / "out", Rows("sl/si_nli_nc_dev", "test"))
    assert len(tests) == 998 and tests[0]["premise"] == 'Rekla je "0\tdni"\nin šla (test).'


def test_both_published_forms_of_senta(tmp_path: Path) -> None:
    """GaMS, 5.2 "sentence simplification task SENTA": its authors' own split of Newsela, and SloTS as its authors split it, line by line."""
    senta, slots = tmp_path / "senta/data/target-grade-V4-split", tmp_path / "slots/database"
    for folder in (senta, slots):
        folder.mkdir(parents=True)
    for split in ("train", "dev", "test"):
        pairs = [
            {"doc_id": f"{split}{n // 2}", "src_grade": "V0", "tgt_grade": "V4", "src_sent_en": "A.", "tgt_sent_en": "B.", "pair_id": n,
             "src_sent_sl": f"Hiša {split} {n}, ki stoji ob reki, je stara.", "tgt_sent_sl": f"Hiša {n} je stara."}
            for n in range(4)
        ]  # fmt: skip
        (senta / f"{split}.jsonl").write_bytes(forms.json_lines(pairs))
    for name in ("ucna", "evalvacijska", "testna"):
        pairs = [{"kompleksni": f"Stara hiša {name} {n}.", "enostavni": f"Hiša {n}."} for n in range(3)]
        (slots / f"{name}.json").write_bytes(forms.json_lines(pairs))
    for name, first, group, count in (
        ("senta", "Hiša test 0, ki stoji ob reki, je stara.", "senta:test0", 4),
        ("slots", "Stara hiša testna 0.", "senta:Stara hiša testna 0.", 3),
    ):
        assert main(["senta", "--source", str(tmp_path / name), "--output", str(tmp_path / f"{name}_out")]) == 0
        rows = _rows(tmp_path / f"{name}_out", "sl/senta_test")
        assert (rows[0]["source"], rows[0]["group"], len(rows)) == (first, group, count)
        assert len(_rows(tmp_path / f"{name}_out", "sl/senta_train")) == count
        asked = find_tasks(["sl_senta_3shot"], metadata={"data": str(tmp_path / f"{name}_out")})["sl_senta_3shot"]
        assert asked.task.instances[0].args[0].count("Poenostavi naslednji stavek.") == 4


def test_real_rows_come_through_unchanged(shared_data: Path, tmp_path: Path) -> None:
    """Slovene SuperGLUE, SI-NLI and SQuAD-it, put back into their publishers' forms."""
    source, real = tmp_path / "source", shared_data / "eval"
    source.mkdir()
    superglue = {path.name.removesuffix(".jsonl.gz"): read(path) for path in (real / "sl" / "superglue_human").iterdir()}
    added = ("id", "group", "task", "split", "lang")
    by_split = {
        name: {
            split: [{k: v for k, v in row.items() if k not in added} for row in rows if row["split"] == split] for split in ("train", "val")
        }
        for name, rows in superglue.items()
    }
    forms.write_superglue(source, by_split)
    nli = {split: read(real / "sl" / f"si_nli_nc_{split}.jsonl.gz") for split in ("train", "dev")}
    columns = ("pair_id", "premise", "hypothesis", "label")
    forms.write_si_nli(source, {split: [{k: row[k] for k in columns} for row in rows] for split, rows in nli.items()})
    squad = read(real / "it" / "squad_it_test.jsonl.gz")
    forms.write_squad_it(source, "test", squad)
    assert main(["superglue_sl", "si_nli", "squad_it", "--source", str(source), "--output", str(tmp_path / "out"), "--sample"]) == 0
    for name, rows in superglue.items():
        found = _rows(tmp_path / "out", f"sl/superglue_human/{name}")
        assert [row["id"].partition("#")[0] for row in found] == [row["id"] for row in rows]
        assert all(row.items() >= {k: v for k, v in made.items() if k not in ("id", "group")}.items() for made, row in zip(found, rows)), (
            name
        )
        assert [row["group"] for row in found] == [row["group"] for row in rows]
    assert _rows(tmp_path / "out", "sl/si_nli_nc_dev") == [
        {k: row[k] for k in ("id", "group", "split", *columns[1:])} for row in nli["dev"]
    ]
    found = {row["id"]: row for row in _rows(tmp_path / "out", "it/squad_it_test")}
    assert len(found) == len(squad) and all(found[row["id"]]["answers"] == list(dict.fromkeys(row["answers"])) for row in squad)


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    def refused(*names: str) -> str:
        with pytest.raises(ValueError) as error:
            main([*names, "--source", str(tmp_path), "--output", str(tmp_path / "out"), "--sample"])
        assert not (tmp_path / "out").exists()
        return str(error.value)

    assert refused("sinli").startswith("evaluation_sets.yaml has no set sinli; it has superglue_sl, si_nli, ")
    assert refused("mlsum_de").endswith("has no file of mlsum_de; expected names such as *de/*test*.parquet (published:"
                                        " https://gitlab.lip6.fr/scialom/mlsum_data/-/raw/master/MLSUM/de_test.zip)")  # fmt: skip
    forms.write_zip(tmp_path / "de_test.zip", {"de_test.jsonl": b'{"text": "a", "resume": "b"}\n'})
    assert refused("mlsum_de") == (
        "mlsum_de has no rows that can be scored: summarisation/de, test: its 1 rows have no summary, which their publisher keeps"
        " private; left out"
    )
    forms.write_zip(tmp_path / "de_test.zip", {"de_test.jsonl": b'{"text": "a", "summary": "b"}\n{"summary": "b"}\n'})
    assert refused("mlsum_de") == "row 2 of de_test.zip/de_test.jsonl has no text; it has line, summary: is it another set?"
    forms.write_zip(tmp_path / "de_test.zip", {"de_test.jsonl": b'{"text": "a", "summary": "b"}\n{"text": \n'})
    assert refused("mlsum_de").startswith("line 2 of de_test.zip/de_test.jsonl is not valid JSON: ")
    forms.write_flores(tmp_path, short="tha_Thai")
    assert "has files of different length: {'en': 6, " in refused("flores")
    (tmp_path / "de_test.zip").write_bytes((tmp_path / "de_test.zip").read_bytes()[:40])
    assert "is not a whole archive" in refused("mlsum_de")


def test_rows_with_one_id_are_told_apart_and_two_copies_refused(tmp_path: Path) -> None:
    rows = forms.si_nli_rows(test_labels=True)
    rows["dev"][1]["pair_id"] = rows["dev"][0]["pair_id"]
    forms.write_si_nli(tmp_path, rows)
    assert main(["si_nli", "--source", str(tmp_path), "--output", str(tmp_path / "out"), "--sample"]) == 0
    assert [row["id"] for row in _rows(tmp_path / "out", "sl/si_nli_nc_dev")[:2]] == ["si_nli:dev:Pdev0", "si_nli:dev:Pdev0#2"]
    (tmp_path / "SI-NLI copy.zip").write_bytes((tmp_path / "SI-NLI.zip").read_bytes())
    with pytest.raises(ValueError, match=r"have the rows of sl/si_nli_nc_train more than once, such as si_nli:train:Ptrain0"):
        main(["si_nli", "--source", str(tmp_path), "--output", str(tmp_path / "again"), "--sample"])


def test_archives_that_would_do_harm_are_refused(tmp_path: Path) -> None:
    def refused() -> str:
        with pytest.raises(ValueError) as error:
            main(["mlsum_de", "--source", str(tmp_path), "--output", str(tmp_path / "out"), "--sample"])
        return str(error.value)

    path = tmp_path / "de_test.zip"
    forms.write_zip(path, {"../../de_test.jsonl": b"{}\n"})
    assert "which lies outside it: it was made to write elsewhere" in refused()
    forms.write_zip(path, {"de_test.jsonl": b"\0" * (200 << 20)})  # 200 MiB in 200 KiB
    assert refused().endswith("unpacks to more than 100 times its size, which no text does; fetch it from its publisher")
    with tarfile.open(path, "w:gz") as archive:
        info = tarfile.TarInfo("other.bin")
        info.size = 200 << 20
        archive.addfile(info, _Zeros())
    assert refused().endswith("unpacks to more than 100 times its size, which no text does; fetch it from its publisher")
    path.unlink()
    (tmp_path.parent / f"{tmp_path.name}_secret.jsonl").write_text('{"text": "a", "summary": "b"}\n')
    os.symlink(tmp_path.parent / f"{tmp_path.name}_secret.jsonl", tmp_path / "de_test.jsonl")
    assert "is a link to" in refused()
    with tarfile.open(tmp_path / "link.tar", "w") as archive:  # a link in an archive is not a file
        info = tarfile.TarInfo("de_test.jsonl")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(info)
    (tmp_path / "de_test.jsonl").unlink()
    os.rename(tmp_path / "link.tar", path)
    assert "has no file of mlsum_de" in refused()


class _Zeros(io.RawIOBase):
    def read(self, size: int = -1) -> bytes:
        return bytes(size)


def test_a_second_time_gives_the_same_bytes_and_other_folders_stay(published: Path, tmp_path: Path) -> None:
    words = ["mlsum_de", "--source", str(published), "--sample", "--output"]
    assert main([*words, str(tmp_path / "a")]) == main([*words, str(tmp_path / "b")]) == 0
    first, second = read_manifest(tmp_path / "a"), read_manifest(tmp_path / "b")
    assert first is not None and second is not None and first.digest == second.digest
    assert list(first.inputs) == ["de_test.zip"]
    with pytest.raises(ValueError, match="exists and is not empty"):
        main([*words, str(tmp_path / "a")])


def test_loose_files_are_as_good_as_archives(tmp_path: Path) -> None:
    archive = forms.write_superglue(tmp_path, forms.superglue_rows())
    with zipfile.ZipFile(archive) as packed:
        packed.extractall(tmp_path / "unpacked")
    for number, source in enumerate((tmp_path, tmp_path / "unpacked")):
        assert main(["superglue_sl", "--source", str(source), "--output", str(tmp_path / f"out{number}"), "--sample"]) == 0
        archive.unlink(missing_ok=True)
    first, second = read_manifest(tmp_path / "out0"), read_manifest(tmp_path / "out1")
    assert first is not None and second is not None and first.digest == second.digest


def test_the_list_has_every_set() -> None:
    lines = listing().splitlines()
    assert len(lines) == 2 + len(ALL)
    assert "| si_nli" in listing() and "CC BY-NC-SA 4.0" in listing() and "5,937" in listing()


@contextlib.contextmanager
def _serving(folder: Path) -> Iterator[str]:
    """A folder on a server of this machine; gives its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None: ...


def test_sets_are_fetched_and_prepared_from_the_cache(published: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On a login node: fetch, then what the command suggests."""
    cluster = ["--cluster", "vega", "--set", f"scratch={tmp_path}"]
    with _serving(published) as address:
        assert prefetch([*cluster, "--evaluation", "mlsum_de", "flores", "--mirror", address]) == 0
        suggested = capsys.readouterr().out.splitlines()[-1].removeprefix("next: ").split()
        (tmp_path / "scion_cache" / "files" / "de_test.zip").write_bytes(b"edited")
        with pytest.raises(ValueError, match="it is damaged or another version"):
            prefetch([*cluster, "--evaluation", "mlsum_de", "--mirror", address])
        (tmp_path / "scion_cache" / "files" / "de_test.zip").unlink()
        assert prefetch([*cluster, "--evaluation", "mlsum_de", "--mirror", address]) == 0
    assert suggested[:5] == ["python", "-m", "eval.prepare", "mlsum_de", "flores"]
    arguments_of(main, suggested[3:])
    suggested[suggested.index("--output") + 1] = str(tmp_path / "out")
    assert main([*suggested[3:], "--sample"]) == 0
    assert len(_rows(tmp_path / "out", "mt/flores_dev")) == 6
    with pytest.raises(
        ValueError, match=r"the files of greeksum have to be downloaded manually: see https://github.com/iakovosevdaimon/GreekSUM"
    ):
        prefetch([*cluster, "--evaluation", "greeksum"])


def test_lines_and_lists_of_json_are_told_apart(tmp_path: Path) -> None:
    rows = [{"text": f"a{n}", "summary": "b"} for n in range(3)]
    for name, content in {
        "lines": forms.json_lines(rows),
        "list": json.dumps(rows, indent=1).encode(),
        "data": json.dumps({"data": rows}).encode(),
    }.items():
        source = tmp_path / name
        source.mkdir()
        forms.write_zip(source / "de_test.zip", {"de_test.jsonl": content})
        assert main(["mlsum_de", "--source", str(source), "--output", str(tmp_path / f"{name}_out"), "--sample"]) == 0
        assert [row["text"] for row in _rows(tmp_path / f"{name}_out", "summarisation/de")] == ["a0", "a1", "a2"]
