"""What stands in front of a document of training data: what the tokenizer puts before a text, or what was asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import processors

from data_prep.join_megatron import join_megatron
from data_prep.megatron.index import TokenFile, open_dataset
from data_prep.mixture import main as mixture
from data_prep.question_answers import question_answers
from data_prep.to_megatron import to_megatron
from data_prep.tokenizers.files import load_tokenizer, save_tokenizer
from data_prep.tokenizers.frame import document_front, frame_of, set_front
from tests.eval.tiny_models import tiny_tokenizer

BOS, EOS = 0, 2  # of tokenizers of data_prep.train_tokenizer


@pytest.fixture(scope="session")
def with_bos(tokenizer_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tokenizer as Gemma's: its post-processor puts `<s>` before a text."""
    tokenizer = load_tokenizer(tokenizer_dir)
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BOS)])
    directory = tmp_path_factory.mktemp("with_bos")
    save_tokenizer(tokenizer, directory)
    return directory


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("Dober dan.\nLahko <s> noč.\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("bos, front", [("auto", [BOS]), ("yes", [BOS]), ("no", [])])
def test_documents_begin_as_the_tokenizer_begins_a_text_or_as_was_asked(
    bos: str, front: list[int], text: Path, with_bos: Path, tmp_path: Path
) -> None:
    tokenizer = load_tokenizer(with_bos)
    manifest = to_megatron([text], tokenizer, tmp_path / "data", bos=bos)
    data = TokenFile(open_dataset(tmp_path / "data")[0])
    plain = load_tokenizer(with_bos).backend_tokenizer
    plain.encode_special_tokens = True
    lines = text.read_text(encoding="utf-8").splitlines()
    assert [data[n].tolist() for n in (0, 1)] == [[*front, *plain.encode(line, add_special_tokens=False).ids, EOS] for line in lines]
    assert manifest.facts["num_tokens"] == data.num_tokens and manifest.facts["num_samples_decoded_to_their_text"] == 2
    assert (manifest.facts["document_front"], manifest.facts["tokenizer_front"]) == (["<s>"] * len(front), ["<s>"])
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text(json.dumps({"question": "Kdo?", "answer": "<s> Medved.</s> Res."}) + "\n", encoding="utf-8")
    question_answers([pairs], with_bos, tmp_path / "pairs", bos=bos)
    prompt, answer = (TokenFile(tmp_path / "pairs" / "text")[n].tolist() for n in (0, 1))
    assert prompt[: len(front)] == front and BOS not in [*prompt[len(front) :], *answer] and answer.index(EOS) == len(answer) - 1


def test_joined_parts_begin_alike(text: Path, with_bos: Path, tmp_path: Path) -> None:
    for bos in ("auto", "no"):
        to_megatron([text], load_tokenizer(with_bos), tmp_path / bos, bos=bos)
    with pytest.raises(ValueError, match=r"document_front \[\], but .* has \['<s>'\]; make both with the same tokenizer and --bos$"):
        join_megatron([tmp_path / "auto", tmp_path / "no"], tmp_path / "joined")


def test_a_mixture_counts_and_makes_what_is_in_front(text: Path, with_bos: Path, tmp_path: Path) -> None:
    text.write_text("".join(f"{n}. Dober dan, {n}.\n" for n in range(20)), encoding="utf-8")
    for bos in ("auto", "no"):
        out = tmp_path / bos
        mixture(
            ["--input", f"a={text}", "--tokenizer", f"t={with_bos}", "--bos", bos, "--validation-share", "0", "--output", str(out)]
            + ["--megatron", str(tmp_path / f"data_{bos}")] * (bos == "no")
        )
    counts = {
        bos: [json.loads(line)["tokens"]["t"] for line in next((tmp_path / bos / "documents").rglob("*.jsonl")).open()]
        for bos in ("auto", "no")
    }
    assert counts["auto"] == [number + 1 for number in counts["no"]]
    made = TokenFile(tmp_path / "data_no" / "a" / "text")
    assert made.lengths.tolist() == counts["no"] and BOS not in made[0]


@pytest.mark.parametrize(
    "template, eos_front, rule, found",
    [
        ("</s> $A", "</s>", "auto", ()),  # OPT: the end of the document before stands there
        ("<s> $A </s>", None, "auto", (0,)),  # encoders
        ("$A", None, "yes", (0,)),
        ("<s> $A <pad>", None, "auto", "puts <s> ... <pad> around a text"),
        ("$A", "</s>", "yes", "has </s> for both ends of a text"),
    ],
)
def test_fronts_of_all_kinds(template: str, eos_front: str | None, rule: str, found: tuple[int, ...] | str) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.bos_token = eos_front or "<s>"
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=template, special_tokens=[("<s>", 0), ("</s>", 1), ("<pad>", 2)]
    )
    if isinstance(found, str):
        with pytest.raises(ValueError, match=found):
            document_front(tokenizer, rule)
    else:
        assert document_front(tokenizer, rule) == found


@pytest.mark.parametrize("name", ["PreTrainedTokenizerFast", "LlamaTokenizerFast"])
def test_an_exported_tokenizer_begins_texts_as_asked(name: str, with_bos: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(with_bos)
    plain = tokenizer.backend_tokenizer.encode("Dober dan", add_special_tokens=False).ids
    save_tokenizer(tokenizer, tmp_path)
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "tokenizer_class": name, "add_bos_token": True}))
    for tokens, front in (([], ()), (["<s>"], (BOS,))):
        set_front(tmp_path, tokens)
        found = load_tokenizer(tmp_path)
        assert frame_of(found).front == front and found("Dober dan").input_ids == [*front, *plain]
