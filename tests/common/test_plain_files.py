"""Small files of settings: what they hold, and a sentence for those that are broken, too deep, or many times as large as they look."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from common.plain_files import MAX_DEPTH, any_tag_loader, parse_yaml, read_json, read_text, read_yaml, require_plain_files
from data_prep.reading.corpora import corpora_from_table
from data_prep.reading.sources import read_sources
from data_prep.tokenizers.files import load_tokenizer
from eval.running.chat import at_most
from recipes.pipelines.load import load_pipeline
from recipes.rules.compose import compose_recipe
from slurm.sites.cluster import load_cluster

ALIASES = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12))
MERGES = "a0: &a0 {x: 1}\n" + "".join(f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 10)}]}}\n" for i in range(1, 12))
HOSTILE = {
    "aliases": (ALIASES, "line 5 stands for more than 107,020 characters once its aliases are expanded; write the values out"),
    "merges": (MERGES, "line 6 stands for more than"),
    "one long text many times": (f"a: &a {'x' * 10_000}\nb: [{', '.join(['*a'] * 20)}]", "line 1 stands for more than 200,9"),
    "a list in itself": ("a: &a [*a]", "line 1 contains itself through an alias; write the values out"),
    "a mapping in itself": ("a: 1\nb: &b {c: {d: *b}}", "line 2 contains itself"),
    "deep lists": ("[" * 5_000 + "]" * 5_000, f"line 1 is nested more than {MAX_DEPTH} levels deep; reduce the nesting"),
    "open lists": ("[" * 5_000, "line 1 is nested more than"),
    "deep mappings": ("\n".join(" " * i + "a:" for i in range(500)), f"line {MAX_DEPTH + 1} is nested more than"),
    "a key twice": ("a: 1\nb: 2\na: 3", "line 3 gives 'a' a second time; keep one of them"),
    "digits": ("a: 1\nb: " + "9" * 5000, "line 2 holds a number of 5,000 characters; write it in quotes if it is text"),
    "digits to the base 60": ("a: 1" + ":1" * 5000, "line 1 holds a number of 10,001 characters"),
}
BROKEN = {
    "no such day": ("a: 2026-99-99", "holds a value that cannot be read: month must be in 1..12; write it in quotes if it is text"),
    "half": ("a: [b\n", "is not valid YAML: while parsing a flow sequence: expected ',' or ']', but got '<stream end>', line 2, column 1"),
    "an object": ("!!python/object/apply:os.system [x]", "is not valid YAML: could not determine a constructor for the tag"),
    "two": ("a: 1\n---\nb: 2", "is not valid YAML: expected a single document"),
    "NUL": ("a: \0", "is not valid YAML: unacceptable character #x0000"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_files_that_are_not_what_they_look_are_refused_in_a_moment(what: str) -> None:
    text, sentence = HOSTILE[what]
    begin = time.process_time()
    with pytest.raises(ValueError) as error:
        parse_yaml(text, subject="the file")
    assert str(error.value).startswith(f"the file, {sentence}") and time.process_time() - begin < 5


@pytest.mark.parametrize("what", BROKEN)
def test_broken_files_are_named(what: str) -> None:
    text, sentence = BROKEN[what]
    with pytest.raises(ValueError) as error:
        parse_yaml(text, subject="the file")
    assert str(error.value).startswith(f"the file {sentence}") and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "read", [corpora_from_table, read_sources, load_pipeline, lambda path: load_cluster(str(path)), lambda path: compose_recipe(str(path))]
)
@pytest.mark.parametrize("what", ["aliases", "a list in itself", "deep lists", "five", "nothing", "no UTF-8", "a list"])
def test_every_reader_of_settings_names_the_file_in_one_sentence(read, what: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    plain = {"five": b"5", "nothing": b"", "no UTF-8": b"a: \xff", "a list": b"[[1], 2]"}
    path.write_bytes(plain[what] if what in plain else HOSTILE[what][0].encode())
    begin = time.process_time()
    with pytest.raises(ValueError) as error:
        read(path)
    assert str(path) in str(error.value) and "\n" not in str(error.value) and time.process_time() - begin < 5


def test_what_a_recipe_names_beside_it_is_looked_at_too(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model/mine.yaml").write_text(ALIASES)
    (tmp_path / "mine.yaml").write_text("defaults: [/model: mine, _self_]\nname: mine\n")
    with pytest.raises(ValueError, match=f"^the recipe {tmp_path}/model/mine.yaml, line 5 stands for more than"):
        compose_recipe(str(tmp_path / "mine.yaml"))
    (tmp_path / "mine.yaml").write_text("defaults: 5\nname: mine\n")
    with pytest.raises(ValueError, match=f"^the recipe {tmp_path}/mine.yaml has defaults 5; expected a list"):
        compose_recipe(str(tmp_path / "mine.yaml"))


LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.dates()
CONTENT = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)


@given(CONTENT, st.booleans())
def test_honest_files_are_read_as_the_library_reads_them(content: object, twice: bool) -> None:
    text = yaml.safe_dump([content, content] if twice else content, allow_unicode=True)  # the same object twice becomes an alias
    assert parse_yaml(text, subject="x") == yaml.safe_load(text)


@given(st.text(alphabet="ab&*:-[]{}<>|!?\"'#, \n\t0", max_size=60))
def test_any_text_is_read_as_the_library_reads_it_or_refused(text: str) -> None:
    try:
        expected = yaml.safe_load(text)
    except yaml.YAMLError:
        with pytest.raises(ValueError):
            parse_yaml(text, subject="x")
        return
    except ValueError:
        return
    try:
        assert repr(parse_yaml(text, subject="x")) == repr(expected)
    except ValueError as error:
        assert "second time" in str(error) or "contains itself" in str(error)


def test_tags_of_objects_can_be_passed_over(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("a: !!python/object:x.Y {b: !z [1, !q c]}\nd: !!python/tuple [1]\n", encoding="utf-8-sig")
    assert read_yaml(tmp_path / "a.yaml", loader=any_tag_loader()) == {"a": {"b": [1, "c"]}, "d": [1]}


def test_json_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for content, sentence in {
        b"{": f"{path} is not valid JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1); make it again",
        b"[" * 100_000: f"{path} is nested too deeply to be read; make it again",
        b"9" * 5000: f"{path} is not valid JSON: Exceeds the limit (4300 digits)",
        b"{\xff": f"{path} is not UTF-8: byte 0xff at position 2; convert it, for example with iconv",
    }.items():
        path.write_bytes(content)
        with pytest.raises(ValueError) as error:
            read_json(path)
        assert str(error.value).startswith(sentence)
    path.write_bytes(b'\xef\xbb\xbf{"a": [1]}')
    assert read_json(path) == {"a": [1]}
    with pytest.raises(FileNotFoundError):
        read_text(tmp_path / "none")
    with open(path, "wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(ValueError, match=f"^{path} has 1073741824 bytes; expected a file of settings of at most 32 MiB$"):
        read_text(path)


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_what_may_never_end_is_not_read(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "scion.json"
    os.mkfifo(path) if kind == "pipe" else path.symlink_to("/dev/zero")
    for read in (read_json, lambda path: require_plain_files(path.parent), lambda path: load_tokenizer(path.parent)):
        with pytest.raises(ValueError, match="is a pipe, socket or device; expected a plain file"):
            read(path)


def test_a_program_in_a_file_has_a_limit() -> None:
    with pytest.raises(ValueError, match="it takes too long"), at_most(0.05, "it takes too long"):
        while True:
            pass
