"""Budgets are met to within a document, nothing held out is trained on, every document is accounted for, and the seed alone decides."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.artifacts import check_files, read_manifest
from data_prep.mixing.plan import Budget, Selector, chosen_corpora, fractions, ranks, ranks_by_weight, require_budgets
from data_prep.mixing.report import next_steps
from data_prep.mixture import MixtureRules, main, mixture
from data_prep.reading.corpora import Corpus
from data_prep.reading.document_ids import id_hash
from data_prep.tokenizers.files import load_tokenizer
from tests.data_prep.packed import outputs, refusal, rows
from tests.data_prep.plain_mixture import take

WORDS = ["dan", "je", "lep", "in", "sonce", "sije", "nad", "mestom", "kjer", "ljudje", "hodijo", "po", "ulicah"]


@pytest.fixture
def corpora(tmp_path: Path) -> list[Corpus]:
    """Two Slovene corpora and an English one; a shard is compressed; documents come in groups of three with the same key in both languages."""
    random = np.random.default_rng(0)
    made = []
    for name, language, domain, num_documents in (
        ("novels", "sl", "books", 90),
        ("crawl", "sl", "web", 60),
        ("wiki", "en", "reference", 120),
    ):
        lines = [
            json.dumps(
                {"id": f"{name}-{n}", "text": ". ".join(" ".join(random.choice(WORDS, 6)) for _ in range(n % 5 + 1)), "group": n // 3}
            )
            for n in range(num_documents)
        ]
        first, second = tmp_path / f"{name}-a.jsonl", tmp_path / f"{name}-b.jsonl.gz"
        first.write_text("\n".join(lines[: num_documents // 2]) + "\n")
        second.write_bytes(gzip.compress(("\n".join(lines[num_documents // 2 :]) + "\n").encode()))
        made.append(Corpus(name, (first, second), language=language, domain=domain))
    return made


def budgets(*texts: str) -> tuple[Budget, ...]:
    return tuple(map(Budget.parse, texts))


def test_shares_of_languages(corpora: list[Corpus], tokenizer_dir: Path, tmp_path: Path) -> None:
    """75 to 25 with two epochs of novels: the blend says what the documents on disk say."""
    rules = MixtureRules(budgets("language:sl=75%", "language:en=25%"), epochs=(("novels", 2.0),), validation_share=0.05)
    manifest = mixture(corpora, {"new": tokenizer_dir}, tmp_path / "out", rules=rules)
    check_files(tmp_path / "out", manifest)
    tokenizer = load_tokenizer(tokenizer_dir)
    seen = {
        name: sum(len(ids) + 1 for ids in tokenizer([row["text"] for row in rows(tmp_path / "out/train" / name)])["input_ids"]) * epochs
        for name, epochs in {"novels": 2, "crawl": 1, "wiki": 1}.items()
    }
    blend = json.loads((tmp_path / "out/blend.json").read_text())
    assert blend["corpora"] == ["novels", "crawl", "wiki"] and blend["epochs"] == [2, 1, 1]
    assert blend["tokens"] == sum(seen.values())
    assert blend["weights"] == [round(tokens / sum(seen.values()), 8) for tokens in seen.values()]
    assert (seen["novels"] + seen["crawl"]) / sum(seen.values()) == pytest.approx(0.75, abs=0.01)


def test_every_document_is_accounted_for(corpora: list[Corpus], tokenizer_dir: Path, tmp_path: Path) -> None:
    rules = MixtureRules(budgets("corpus:novels=800", "corpus:wiki=500"), validation_share=0.05)
    manifest = mixture(corpora, {"new": tokenizer_dir, "again": tokenizer_dir}, tmp_path / "out", rules=rules)
    train, held_out, listed = (rows(tmp_path / "out" / part) for part in ("train", "validation", "documents"))
    identities = [row["id"] for corpus in corpora for path in corpus.paths for row in rows(path)]
    assert sorted(row["id"] for row in listed) == sorted(identities)
    sides = {row["id"]: row["side"] for row in listed}
    assert {row["id"] for row in train} == {identity for identity, side in sides.items() if side == "train"}
    assert {row["id"] for row in held_out} == {identity for identity, side in sides.items() if side == "validation"}
    assert not {row["group"] for row in train} & {row["group"] for row in held_out}, "no group is on both sides, in no language"
    originals = {row["id"]: row for corpus in corpora for path in corpus.paths for row in rows(path)}
    for row in (*train, *held_out):
        assert row == originals[row["id"]] | {"corpus": row["id"].partition("-")[0]}
    for count in manifest.facts["corpora"]:
        mine = [row for row in listed if row["id"].startswith(count["name"])]
        for side in ("train", "validation", "left_out"):
            chosen = [row for row in mine if row["side"] == side.replace("_", " ")]
            assert count[side]["documents"] == len(chosen)
            assert count[side]["text_bytes"] == sum(row["bytes"] for row in chosen)
            assert list(count[side]["tokens"]) == [sum(row["tokens"][name] for row in chosen) for name in ("new", "again")]
    by_name = {count["name"]: count["train"]["tokens"][0] for count in manifest.facts["corpora"]}
    assert by_name["novels"] == pytest.approx(800, abs=40) and by_name["wiki"] == pytest.approx(500, abs=40)
    assert next(c for c in manifest.facts["corpora"] if c["name"] == "crawl")["left_out"]["documents"] == 0, "taken whole"


def test_the_seed_alone_decides(corpora: list[Corpus], tokenizer_dir: Path, tmp_path: Path) -> None:
    def made(name: str, seed: int, workers: int) -> dict[str, bytes]:
        rules = MixtureRules(budgets("language:sl=1000"), validation_share=0.05, seed=seed)
        mixture(corpora, {"new": tokenizer_dir}, tmp_path / name, rules=rules, workers=workers)
        return outputs(tmp_path / name)

    first = made("a", 1, 1)
    assert first == made("b", 1, 3)
    assert first != made("c", 2, 1)


def test_choices_do_not_depend_on_files(corpora: list[Corpus], tokenizer_dir: Path, tmp_path: Path) -> None:
    joined = []
    for corpus in corpora:
        path = tmp_path / f"{corpus.name}-joined.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for file in corpus.paths for row in rows(file)))
        joined.append(Corpus(corpus.name, (path,), language=corpus.language, domain=corpus.domain))
    rules = MixtureRules(budgets("language:sl=1000", "language:en=300"), validation_share=0.05)
    chosen = []
    for name, each in (("parts", corpora), ("joined", joined)):
        mixture(each, {"new": tokenizer_dir}, tmp_path / name, rules=rules)
        chosen.append({(row["id"], row["side"]) for row in rows(tmp_path / name / "documents")})
    assert chosen[0] == chosen[1]


def test_sentences_of_each_language(corpora: list[Corpus], tokenizer_dir: Path, tmp_path: Path) -> None:
    mixture(corpora, {"new": tokenizer_dir}, tmp_path / "out", rules=MixtureRules(sentences=50))
    train = rows(tmp_path / "out/train")
    held_out = {row["id"].partition("#")[0] for row in rows(tmp_path / "out/validation")}
    assert held_out and not held_out & {row["id"].partition("#")[0] for row in train}
    assert len(train) == 100 and sum(row["corpus"] == "wiki" for row in train) == 50
    texts = {row["id"]: row["text"] for corpus in corpora for path in corpus.paths for row in rows(path)}
    for row in train:
        identity, _, number = row["id"].partition("#")
        assert row["text"].rstrip(".") == texts[identity].split(". ")[int(number) - 1]


def test_quality_subset_without_web(corpora: list[Corpus], tokenizer_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "corpora.yaml"
    table.write_text(
        "".join(f"- {{name: {c.name}, files: [{c.name}-*], language: {c.language}, domain: {c.domain}, licence: CC0}}\n" for c in corpora)
    )
    arguments = ["--corpora", str(table), "--tokenizer", f"new={tokenizer_dir}", "--leave-out", "domain:web", "--workers", "1"]
    assert main([*arguments, "--output", str(tmp_path / "out")]) == 0
    assert {row["corpus"] for row in rows(tmp_path / "out/train")} == {"novels", "wiki"}
    manifest = read_manifest(tmp_path / "out")
    assert manifest is not None and set(manifest.inputs) == {str(path) for c in (corpora[0], corpora[2]) for path in c.paths}
    assert "licence: CC0" in (tmp_path / "out/corpora.yaml").read_text()
    out = capsys.readouterr().out
    assert f"--input {tmp_path / 'out'}/train/novels/* --tokenizer {tokenizer_dir} --output {tmp_path / 'out'}/megatron/novels\n" in out
    assert out.endswith(f"model.checkpoint=nemo/ data.train={tmp_path / 'out'}\n")


@pytest.mark.parametrize(
    "options, sentence",
    [
        ("--budget language:de=5", "--budget language:de: no corpus has this language; there are en, sl"),
        ("--budget sl=5", "--budget sl is not of the form KEY:VALUE with language, corpus, domain as the key, for example language:sl"),
        ("--budget language:sl=much", "--budget language:sl=much is not of the form KEY:VALUE=TOKENS or KEY:VALUE=PERCENT%, for example language:it=75%"),
        ("--budget language:sl=50% language:en=20%", "the shares of --budget are 70 % together; expected 100 %"),
        ("--budget language:sl=100%", "the corpus wiki (language en) has no share; give it one or --leave-out corpus:wiki"),
        ("--budget language:sl=50% language:en=5", "--budget has shares and numbers of tokens; give all of them in per cent or none"),
        ("--budget language:sl=5 domain:web=5", "--budget speaks of domain and language; budgets are by one of them, the rest can only be left out"),
        ("--budget language:sl=5 language:sl=6", "--budget names something twice; give each one budget"),
        ("--budget language:sl=5 --tokens 7", "--tokens is the total of shares, but --budget gives numbers of tokens; leave out one of them"),
        ("--tokens 7", "--tokens needs --budget with shares; give, for example, --budget language:sl=100%"),
        ("--leave-out language:sl language:en", "--leave-out leaves no corpus"),
        ("--leave-out domain:new", "--leave-out domain:new: no corpus has this domain; there are books, reference, web"),
        ("--epochs kas=2", "--epochs kas: there is no such corpus; there are novels, crawl, wiki"),
        ("--epochs wiki=0", "--epochs wiki=0: expected a number above 0"),
        ("--epochs wiki=x", "--epochs wiki is 'x'; expected a number"),
        ("--sentences 5 --budget language:sl=5", "--sentences takes a number of sentences from each language, and no --budget beside it"),
        ("--weight-key score", "--weight-key says which documents a budget takes, but everything is taken; give --budget or --sentences beside it"),
        ("--weight-key kas=score --budget corpus:wiki=9", "--weight-key kas=score: there is no such corpus; there are novels, crawl, wiki"),
        ("--weight-key a b --budget corpus:wiki=9", "--weight-key gives a and b for all corpora; give one of them, or CORPUS=KEY"),
        ("--weight-key wiki= --budget corpus:wiki=9", "--weight-key wiki= is not of the form NAME=VALUE"),
        ("--validation-share 0.5", "--validation-share is 0.5; expected a share from 0 to less than 0.5, such as 0.0005"),
    ],
)  # fmt: skip
def test_contradictions_are_refused(corpora: list[Corpus], tokenizer_dir: Path, tmp_path: Path, options: str, sentence: str) -> None:
    table = tmp_path / "corpora.yaml"
    table.write_text("".join(f"- {{name: {c.name}, files: [{c.name}-*], language: {c.language}, domain: {c.domain}}}\n" for c in corpora))
    assert (
        refusal(main, ["--corpora", str(table), "--tokenizer", f"new={tokenizer_dir}", "--output", str(tmp_path / "out"), *options.split()])
        == sentence
    )
    assert not (tmp_path / "out").exists() and not (tmp_path / ".out.unfinished").exists()


def test_a_budget_that_is_too_large_names_the_largest(corpora: list[Corpus], tokenizer_dir: Path, tmp_path: Path) -> None:
    def rules(total: float) -> MixtureRules:
        return MixtureRules(budgets("language:sl=75%", "language:en=25%"), total=total, validation_share=0.0)

    with pytest.raises(ValueError) as error:
        mixture(corpora, {"new": tokenizer_dir}, tmp_path / "out", rules=rules(1e6))
    message = str(error.value)
    assert message.startswith("language:sl has ") and " tokens for training, epochs counted, but its budget is 750,000;" in message
    largest = int(message.rpartition(" ")[2].replace(",", ""))
    mixture(corpora, {"new": tokenizer_dir}, tmp_path / "other", rules=rules(largest))


def test_a_run_that_was_stopped_goes_on(corpora: list[Corpus], tokenizer_dir: Path, tmp_path: Path) -> None:
    """The last file is broken; when it is repaired, the others are not counted again."""
    path = corpora[2].paths[1]
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    with pytest.raises(ValueError, match=rf"^{path} is not a complete gzip file"):
        mixture(corpora, {"new": tokenizer_dir}, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    tables = {table: table.stat().st_mtime_ns for table in (tmp_path / ".out.unfinished/scratch").rglob("*.npz")}
    assert len(tables) == 5
    path.write_bytes(whole)
    with pytest.raises(ValueError, match="was left by a run with other options or inputs"):
        mixture(corpora, {"new": tokenizer_dir}, tmp_path / "out", rules=MixtureRules(group_key="url"))
    with pytest.raises(
        ValueError, match="no document is left for training"
    ):  # a refusal whose advice, a larger budget, counts nothing anew
        mixture(
            corpora,
            {"new": tokenizer_dir},
            tmp_path / "out",
            rules=MixtureRules(budgets("corpus:crawl=1", "corpus:novels=1", "corpus:wiki=1"), seed=5),
        )
    assert {table: table.stat().st_mtime_ns for table in tables} == tables
    mixture(corpora, {"new": tokenizer_dir}, tmp_path / "out")
    mixture(corpora, {"new": tokenizer_dir}, tmp_path / "fresh")
    assert outputs(tmp_path / "out") == outputs(tmp_path / "fresh")


def test_a_file_that_was_changed_since_it_was_counted(corpora: list[Corpus], tokenizer_dir: Path, tmp_path: Path) -> None:
    """Of the same size and date, so that only its documents tell."""
    last, path = corpora[2].paths[1], corpora[0].paths[0]
    whole, stat = last.read_bytes(), path.stat()
    last.write_bytes(whole[:-9])
    with pytest.raises(ValueError, match="is not a complete gzip file"):
        mixture(corpora, {"new": tokenizer_dir}, tmp_path / "out")
    last.write_bytes(whole)
    path.write_text(path.read_text().replace("novels-7", "novelz-7", 1))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    with pytest.raises(ValueError, match=f"^{path} was changed while the mixture was made; run again"):
        mixture(corpora, {"new": tokenizer_dir}, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_nothing_left_for_training(tokenizer_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "Deset ali še nekaj več besed ima ta edini dokument, ki ga nihče ne vzame."}\n')
    assert (
        refusal(mixture, [Corpus("web", (path,))], {"new": tokenizer_dir}, tmp_path / "out", rules=MixtureRules(budgets("corpus:web=1")))
        == f"no document is left for training in {path}; give more text or larger budgets"
    )
    assert not (tmp_path / "out").exists()


def test_shares_by_hand() -> None:
    corpora = [Corpus("a", (), language="it"), Corpus("b", (), language="it"), Corpus("c", (), language="en")]
    available = {"a": 100, "b": 300, "c": 1000}
    both = budgets("language:it=75%", "language:en=25%")
    # All Italian is 400, so English is 133.3 of its 1,000.
    assert fractions(both, corpora, available, {}, None) == pytest.approx({"a": 1, "b": 1, "c": 400 / 3 / 1000})
    # Two epochs of a: Italian has 500.  300 tokens in all are 225 of these, alike from both.
    assert fractions(both, corpora, available, {"a": 2}, 300) == pytest.approx({"a": 0.45, "b": 0.45, "c": 0.075})
    assert fractions(budgets("corpus:b=30"), corpora, available, {}, None) == pytest.approx({"a": 1, "b": 0.1, "c": 1})
    assert refusal(fractions, both, corpora, available, {}, 1000) == (
        "language:it has 400 tokens for training, epochs counted, but its budget is 750; give it more --epochs or a smaller budget;"
        " the largest possible --tokens is 533"
    )
    require_budgets(both, corpora, None)
    assert chosen_corpora(corpora, [Selector("corpus", "b")]) == [corpora[0], corpora[2]]


def _scored(tmp_path: Path, scores: list[Any]) -> Path:
    path = tmp_path / "scored.jsonl"
    made = [{"id": f"d{n}", "text": " ".join(WORDS[: 3 + n % 9]), "doc_scores": [score]} for n, score in enumerate(scores)]
    path.write_text("".join(json.dumps(row) + "\n" for row in made))
    return path


def test_documents_in_proportion_to_their_weight(tokenizer_dir: Path, tmp_path: Path) -> None:
    """The documents of a budget are those of a plain sort by a number from 0 to 1 divided by the weight; a weight of 0 is never taken."""
    scores = [[0, 1, 2.5, 4][n % 4] for n in range(200)]
    path = _scored(tmp_path, scores)
    plain = tmp_path / "plain.jsonl"
    plain.write_text('{"id": "p", "text": "dan je lep in sonce sije"}\n' * 1 + '{"id": "q", "text": "nad mestom"}\n')
    words = ["--input", f"web={path}", f"books={plain}", "--tokenizer", f"t={tokenizer_dir}", "--validation-share", "0", "--workers", "1"]
    words += ["--budget", "corpus:web=600", "--weight-key", "web=doc_scores.0", "--seed", "5"]
    assert main([*words, "--output", str(tmp_path / "out")]) == 0
    listed = {row["id"]: row for row in rows(tmp_path / "out/documents")}
    assert "weight" not in listed["p"] and {row["side"] for row in (listed["p"], listed["q"])} == {"train"}, "books have no weights"
    assert [listed[f"d{n}"]["weight"] for n in range(200)] == scores
    hashes = {name: id_hash(json.dumps(["web", name])) for name in listed if name[0] == "d"}
    keys = {
        name: (int(ranks(np.array([hashed], np.uint64), 5)[0]) + 1) / listed[name]["weight"]
        for name, hashed in hashes.items()
        if listed[name]["weight"]
    }
    expected, total = set(), 0
    for name in sorted(keys, key=lambda name: keys[name]):
        tokens = listed[name]["tokens"]["t"]
        if abs(total + tokens - 600) > abs(total - 600):
            break
        total += tokens
        expected.add(name)
    assert {name for name, row in listed.items() if name[0] == "d" and row["side"] == "train"} == expected
    manifest = read_manifest(tmp_path / "out")
    assert manifest is not None and manifest.facts["weight_keys"] == {"web": "doc_scores.0"}
    train = manifest.facts["corpora"][0]["train"]
    assert train["weight"] == sum(listed[name]["weight"] for name in expected)
    means = [sum(values) / len(values) for values in (scores, [listed[name]["weight"] for name in expected])]
    assert f"| web    | doc_scores.0 | {means[0]:.4g} | {means[1]:.4g} |" in (tmp_path / "out/report.md").read_text()


def test_the_chance_of_a_document_is_in_proportion_to_its_weight() -> None:
    """Over 500 seeds, up to 1; and equal weights are not weights."""
    names = np.arange(400, dtype=np.uint64)
    weights = np.array([1.0, 2.0, 4.0, 50.0])[np.arange(400) % 4]
    times = np.zeros(400)
    for seed in range(500):
        times += take(np.ones(400, np.int64), ranks_by_weight(ranks(names, seed), weights), 170)
        alike = ranks(names, seed)
        assert (np.argsort(ranks_by_weight(alike, np.full(400, 2.0))) == np.argsort(alike)).all()
    shares = times.reshape(100, 4).mean(0) / 500
    assert shares == pytest.approx([0.1, 0.2, 0.4, 1.0], rel=0.02)  # 100 documents each: 10 + 20 + 40 + 100 = 170


@pytest.mark.parametrize(
    "score, found",
    [(-0.5, "-0.5"), ("NaN", "missing, or not a number"), (None, "missing, or not a number"), (True, "missing, or not a number")],
)
def test_a_document_without_a_weight_is_named(score: Any, found: str, tokenizer_dir: Path, tmp_path: Path) -> None:
    path = _scored(tmp_path, [1, 2, score, 4])
    words = ["--input", f"web={path}", "--tokenizer", f"t={tokenizer_dir}", "--budget", "corpus:web=9", "--weight-key", "doc_scores.0"]
    assert refusal(main, [*words, "--workers", "1", "--output", str(tmp_path / "out")]) == (
        f"{path}, document d2: doc_scores.0, the --weight-key of web, is {found}; expected a number of at least 0. Leave such documents out"
        " with data_prep.clean (scores, missing: drop), or name the key for other corpora alone (CORPUS=KEY)"
    )
    assert not (tmp_path / "out").exists()


def test_the_blend_is_a_recipe_s(corpora: list[Corpus], tokenizer_dir: Path, tmp_path: Path) -> None:
    """A recipe takes data sets, epochs, languages and validation of a mixture by its folder; what it says itself stays."""
    from recipes.rules.compose import compose_recipe

    out = tmp_path / "out"
    manifest = mixture(corpora, {"new": tokenizer_dir}, out, rules=MixtureRules(epochs=(("novels", 3.0),)))
    line = next_steps(out, manifest.facts["blend"], str(tokenizer_dir), out / "megatron").splitlines()[-1]
    words = [word for word in line.split() if word.startswith(("data.", "model."))]
    with pytest.raises(ValueError, match=r"^data.train is .*/out, a mixture whose text is not tokenized yet; make it with --megatron"):
        compose_recipe("demo_adapt", words)
    (out / "megatron").mkdir()
    data = compose_recipe("demo_adapt", words).data
    assert data.train == tuple(f"{out}/megatron/{name}" for name in ("novels", "crawl", "wiki"))
    assert (data.languages, data.epochs, data.weights) == (("sl", "sl", "en"), (3, 1, 1), ())
    assert data.validation == {language: f"{out}/megatron/validation/{language}" for language in ("en", "sl")}
    own = compose_recipe("demo_adapt", [*words, "data.validation=mine", "data.weights=[1,1,2]"]).data
    assert own.validation == {"all": "mine"} and own.weights == (1, 1, 2) and own.epochs == ()
