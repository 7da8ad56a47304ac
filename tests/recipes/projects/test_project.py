"""Project files: which stages follow from them, what is refused before anything runs, and what is said about their keys."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from common.command import arguments_of
from conversion import transfer
from conversion.embeddings.request import take_recommended
from recipes import explain, init, run
from recipes.pipelines.checks import task_problems
from recipes.pipelines.file import Pipeline, command_of, dependencies_of, pipeline_from_mapping, recipe_of, tasks_of
from recipes.projects.eject import eject_text
from recipes.projects.expand import expand_project
from recipes.projects.explained import find, keys
from recipes.projects.project import load_project
from tests.processes import ROOT

PROJECTS = ROOT / "recipes" / "projects"
BUNDLED = sorted(path.stem for path in PROJECTS.glob("*.yaml"))
PAPERS = ("gams", "low_resource", "ofa", "sava")  # of files that a user has to bring
VECTORS = "transfer.options=--vectors {}"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a model's folder and texts."""
    for folder, config in (("model", {"model_type": "llama"}), ("zebra", {"model_type": "zebra"}), ("damaged", [])):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "config.json").write_text(json.dumps(config))
    (tmp_path / "texts").mkdir()
    texts = dict.fromkeys(("sl.txt", "en.txt", "held.txt", "a.pdf", "texts/sl.txt"), "Prvi stavek.\nDrugi stavek.\n")
    texts |= {
        "binary.txt": "\0\1\0\2" * 99,
        "m1.gguf": "GGUF damaged",
        "empty.txt": "",
        "body.jsonl": '{"body": "Prvi."}\n',
        "long.txt": "Prvi.\n\nDrugi.\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def write(place: Path, content: dict[str, Any] | str) -> Path:
    path = place / "slovene.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return path


def usual(**changes: Any) -> dict[str, Any]:
    return {"source": "model", "languages": {"sl": "sl.txt", "en": "en.txt"}, **changes}


def checked(mapping: dict[str, Any]) -> Pipeline:
    """The pipeline, of which every command parses and every recipe is sound."""
    pipeline = pipeline_from_mapping(mapping)
    assert task_problems(pipeline, [task for stage in pipeline.stages for task in tasks_of(pipeline, stage)]) == []
    return pipeline


def commands(pipeline: Pipeline) -> dict[str, list[str]]:
    return {stage: command_of(pipeline, task)[2:] for stage in pipeline.stages for task in tasks_of(pipeline, stage)}


@pytest.mark.parametrize("name", BUNDLED)
def test_every_bundled_project_is_a_sound_pipeline(name: str, tmp_path: Path) -> None:
    vectors = tmp_path / "words.vec"
    vectors.touch()
    tiny = ["size=tiny", VECTORS.format(vectors)] if name == "ofa" else ["size=tiny"]
    for overrides in [tiny] if name in PAPERS else [[], tiny]:
        checked(expand_project(PROJECTS / f"{name}.yaml", overrides=[*overrides, f"machine.work_dir={tmp_path / 'out'}"]))


@pytest.mark.parametrize("name", PAPERS)
def test_a_papers_project_is_a_sound_pipeline_once_its_files_are_there(name: str, tmp_path: Path) -> None:
    text = (PROJECTS / f"{name}.yaml").read_text(encoding="utf-8")
    for folder in ("eval_data", "corpora", "minerva-3b", "glot500-m", "colexnet.wv"):
        (tmp_path / folder).mkdir()
    (tmp_path / f"{name}.yaml").write_text(text, encoding="utf-8")
    pipeline = checked(expand_project(tmp_path / f"{name}.yaml"))
    # GaMS looks at held-out text while it trains; the others do not ask for it.
    validated = [stage for stage, words in commands(pipeline).items() if any(word.startswith("data.validation={") for word in words)]
    assert validated == (["train_focus"] if name == "gams" else [])


def test_the_usual_stages(place: Path) -> None:
    pipeline = checked(expand_project(write(place, usual(vocabulary={"replace": 300}, transfer=["mean", "focus"]))))
    words = commands(pipeline)
    assert list(words) == [
        *("clean_sl", "split_sl", "text_sl", "clean_en", "split_en", "text_en", "tokenizer"),
        *("start_mean", "nemo_mean", "data_vocabulary_sl", "data_vocabulary_en", "train_mean", "export_mean_122", "export_mean_244"),
        *("start_focus", "nemo_focus", "train_focus", "export_focus_122", "export_focus_244"),
        *("start_source", "nemo_source", "data_source_sl", "data_source_en", "train_source", "export_source_244"),
        *("verify", "evaluate", "report", "intervals", "vocabularies"),
    ]
    root = pipeline.root
    # No stage that learns from text reads what was held out, and what is near to it is gone.
    assert words["text_sl"] == shlex.split(
        f"data_prep.dedup --input sl={root}/text/sl/split/train --against {root}/text/sl/split/validation --output {root}/text/sl/unique"
    )
    for stage, given in words.items():
        if stage not in ("text_sl", "text_en", "evaluate", "vocabularies"):
            assert not any("validation" in word for word in given if not word.startswith("--validation-share"))
    assert "--text" not in words["start_mean"] and f"{root}/text/sl/unique/text" in words["start_focus"]
    # The source's own vocabulary is trained alike.
    mean, source = (set(words[f"train_{name}"][3:-2]) for name in ("mean", "source"))
    assert {word.partition("=")[0] for word in mean ^ source} == {"model.checkpoint", "data.train", "run.checkpoint_every_steps"}
    assert "data.weights=[0.9,0.1]" in mean & source
    assert words["intervals"][words["intervals"].index("--baseline") + 1] == "source-244"


@pytest.mark.parametrize(("recipe", "word"), [("language", "+procedure=lora"), ("low_resource/llama2", "procedure=lora")])
def test_a_procedure_takes_the_place_of_the_recipes(recipe: str, word: str, place: Path) -> None:
    training = {"recipe": recipe, "procedure": "lora", "steps": 4}
    assert word in commands(checked(expand_project(write(place, usual(vocabulary="keep", training=training)))))["train_source"]


def test_what_a_comparison_finds_is_transferred(place: Path) -> None:
    words = commands(checked(expand_project(write(place, usual()))))
    assert words["start_best"][words["start_best"].index("--method-from") + 1] == words["compare"][-1]
    assert words["compare"][words["compare"].index("--methods") + 1 :][:4] == ["mean", "merge", "align", "focus"]


def test_a_swap_says_what_goes(place: Path) -> None:
    content = usual(vocabulary={"swap": 9, "swap_scripts": ["Cyrillic"]}, transfer="mean")
    words = commands(checked(expand_project(write(place, content))))["start_mean"]
    assert words[words.index("--vocabulary") + 1 :][:5] == ["swap", "--new-tokens", "9", "--swap-script", "Cyrillic"]
    assert "--text" in words and "--source-text" in words


def test_the_recommended_method_gets_its_material_alone(tmp_path: Path) -> None:
    def taken(*more: str, method: str | None = "mean") -> Any:
        (tmp_path / "comparison.json").write_text(json.dumps({"recommendation": {"method": method}}))
        words = ["--source", "s", "--tokenizer", "t", "--text", "x.txt", "--output", "o", "--method-from", str(tmp_path), *more]
        arguments, _ = arguments_of(transfer.main, words)
        namespace = type("Arguments", (), arguments)
        take_recommended(namespace)  # type: ignore[arg-type]
        return namespace

    assert (taken().method, taken().text) == ("mean", None)
    assert taken(method="focus").text == [Path("x.txt")]
    assert taken("--vocabulary", "expand", "--new-tokens", "9").text is None  # with a tokenizer nothing is learned from text
    with pytest.raises(ValueError, match="--method and --method-from both name a method; give one of them"):
        taken("--method", "mean")
    with pytest.raises(ValueError, match="recommends None, which is not a method; run the comparison again"):
        taken(method=None)


def test_texts_under_a_key_of_their_own_are_read_once_and_never_named_again(place: Path) -> None:
    (place / "more.jsonl").write_text('{"body": "Drugi."}\n', encoding="utf-8")
    languages = {"sl": {"texts": ["body.jsonl", "sl.txt"], "heldout": "more.jsonl"}, "en": "en.txt"}
    content = usual(languages=languages, text={"key": "body"}, evaluation={"texts": {"news": "held.txt"}}, vocabulary={"replace": 300})
    words = commands(checked(expand_project(write(place, content))))
    read = [name for name, given in words.items() if "--text-key" in given]
    assert read == ["heldout_sl", "read_news", "read_sl", "read_en"]
    root = place / "slovene_output" / "text"
    assert words["read_sl"][2:6] == [f"sl={place}/body.jsonl", str(place / "sl.txt"), "--text-key", "body"]
    assert words["clean_sl"][2] == f"sl={root}/sl/read/text" and f"news={root}/news/read/text" in words["evaluate"]
    assert f"sl={root}/sl/heldout/text" in words["evaluate"] and str(root / "sl/heldout/text") in words["text_sl"]
    assert not any(str(place / "body.jsonl") in word for name, given in words.items() if name not in read for word in given)


def test_budget_recipe_and_languages(place: Path) -> None:
    (place / "own.yaml").write_text((ROOT / "recipes/conf/recipe/demo.yaml").read_text(), encoding="utf-8")
    content = usual(
        languages={"sl": {"texts": "sl.txt", "share": 3.0, "heldout": "held.txt"}, "hr": {"texts": "en.txt", "sentences": 5}},
        vocabulary="keep",
        training={"recipe": "own.yaml", "tokens": 3000, "batch": 2, "checkpoints": 1, "overrides": ["seed=7"]},
        text={"clean": "none", "deduplicate": False},
        machine={"processes": 2, "memory_gib": 4, "hours": 1.5},
    )
    mapping = expand_project(write(place, content))
    words = commands(checked(mapping))
    # 2 samples of 128 tokens a step; 3,000 tokens are 12 such steps. Two ranks take a sample each.
    assert {"schedule.max_steps=12", "schedule.micro_batch_size=1", "data.weights=[0.75,0.25]", "seed=7"} < set(words["train_source"])
    assert words["data_source_sl"][2] == str(place / "sl.txt") and "--sentences" in words["split_hr"] and "split_sl" not in words
    assert mapping["resources"]["training"] == {"time_limit": "01:30:00", "memory_gib": 4, "kind": "gpu"}
    assert set(mapping["paths"]) == {str(place / name) for name in ("model", "sl.txt", "en.txt", "held.txt", "own.yaml")}


REFUSED: dict[str, tuple[dict[str, Any] | str, str]] = {
    "no keys": ("just text", "holds no keys; expected those of a project (source, languages"),
    "no YAML": ("source: [", "is not valid YAML"),
    "a key twice": ("source: a\nsource: b", "source"),
    "no source": ({"languages": {"sl": "sl.txt"}}, "source is missing"),
    "no languages": ({"source": "model"}, "languages is missing"),
    "an unknown key": (usual(vocabluary={"expand": 5}), "unknown key vocabluary; the nearest known key is vocabulary"),
    "an unknown key inside": (usual(training={"step": 5}), "unknown key training.step; the nearest known key is training.steps"),
    "a wrong type": (usual(training={"steps": "many"}), "training.steps is 'many'; expected int"),
    "a part of a step": (usual(training={"steps": 1.5}), "training.steps is 1.5; expected int"),
    "a section that is none": (usual(machine=3), "machine is 3; expected a section with work_dir"),
    "no such source": (usual(source="modle/x/y"), "modle/x/y does not exist; expected a folder, a GGUF file"),
    "a source without a config": (usual(source="."), "which has no config.json; expected a Hugging Face folder"),
    "a source of another kind": (usual(source="zebra"), "is of the model type zebra, which is not supported; known are opt"),
    "a damaged source": (usual(source="damaged"), "damaged/config.json is not a JSON object"),
    "no such GGUF": (usual(source="m.gguf"), "source is m.gguf, which does not exist"),
    "a damaged GGUF": (usual(source="m1.gguf"), "m1.gguf is GGUF of version 1835099168; expected 2 or 3, little-endian"),
    "no such text": (usual(languages={"sl": "no.txt", "en": "en.txt"}), "languages.sl.texts names no.txt, which does not exist"),
    "a text of another kind": (usual(languages={"sl": "a.pdf"}), "languages.sl.texts names a.pdf, which is of an unknown kind"),
    "an empty text": (usual(languages={"sl": "empty.txt"}), "empty.txt, which has no text; give files with text"),
    "a binary file as text": (usual(languages={"sl": "binary.txt"}), "binary.txt, which is full of NUL characters, as a binary file is"),
    "a folder without text": (usual(languages={"sl": "model"}), "has no text file, only 1 x .json; expected names ending in"),
    "a text under another key": (
        usual(languages={"sl": "body.jsonl"}),
        "has no key 'text', only 'body'; name the key of the text as text.key",
    ),
    "texts without the key": (
        usual(languages={"sl": "body.jsonl"}, text={"key": "content"}),
        "has no key 'content', only 'body'; name the",
    ),
    "paragraphs in a text": (usual(languages={"sl": "long.txt"}), "say with text.separator what ends one (line, blank-line, file)"),
    "a text that is held out": (
        usual(languages={"sl": {"texts": "sl.txt", "heldout": "sl.txt"}}),
        "languages.sl.heldout names sl.txt, which languages.sl.texts has already",
    ),
    "a text of two languages": (usual(languages={"sl": "sl.txt", "en": "sl.txt"}), "en.texts names sl.txt, which languages.sl.texts has"),
    "a held-out text among the texts": (
        usual(languages={"sl": {"texts": "texts", "heldout": "texts/sl.txt"}}),
        "languages.sl.heldout names texts/sl.txt and languages.sl.texts names texts, which both have sl.txt",
    ),
    "a text that models are measured on": (
        usual(evaluation={"texts": {"mine": "sl.txt"}}),
        "evaluation.texts.mine names sl.txt and languages.sl.texts names sl.txt, which both have sl.txt",
    ),
    "a text given twice": (usual(languages={"sl": ["texts", "texts/sl.txt"]}), "names texts, which both have sl.txt; give each text once"),
    "a share beside a held-out text": (
        usual(languages={"sl": {"texts": "sl.txt", "heldout": "held.txt", "heldout_share": 0.2}}),
        "languages.sl.heldout_share has no effect, as heldout names a file",
    ),
    "one language by two codes": (usual(languages={"sl": "sl.txt", "slv": "held.txt"}), "languages.sl and languages.slv are one language"),
    "the source's language by another code": (
        usual(languages={"sl": "sl.txt", "eng": "en.txt"}),
        "languages.eng is the source's language, which source_language calls en",
    ),
    "no such held-out text": (usual(languages={"sl": {"texts": "sl.txt", "heldout": "h.txt"}}), "languages.sl.heldout names h.txt"),
    "two held-out texts": (
        usual(languages={"sl": {"texts": "sl.txt", "heldout": ["held.txt", "en.txt"]}}),
        "languages.sl.heldout names 2 files; expected one",
    ),
    "no texts": (usual(languages={"sl": {}}), "languages.sl has neither texts nor corpora"),
    "no language": (usual(languages={"qq": "sl.txt"}), "languages.qq names no language; expected a code of ISO 639"),
    "no new language": (usual(languages={"en": "en.txt"}), "languages has no new language; expected one beside en"),
    "an unknown corpus": (usual(languages={"sl": {"corpora": "cc10_sl"}}), "names cc10_sl; did you mean cc100_sl?"),
    "a share of all": (
        usual(languages={"sl": {"texts": "sl.txt", "heldout_share": 1.0}}),
        "languages.sl.heldout_share is 1; expected a share above 0 and below 0.5",
    ),
    "an unknown cleaning": (usual(text={"clean": "strong"}), "text.clean is 'strong'; expected none, light, standard, web"),
    "two kinds": (usual(vocabulary={"expand": 5, "replace": 300}), "vocabulary has replace and expand; expected one of"),
    "no kind": (
        usual(vocabulary={"a": {"kind": "bpe"}}),
        "vocabulary.a has none of its kinds; expected one of replace, expand, swap, keep",
    ),
    "scripts without a swap": (
        usual(vocabulary={"a": {"expand": 5, "swap_scripts": ["Han"]}}),
        "vocabulary.a.swap_scripts selects the tokens that swap removes",
    ),
    "names that differ in dashes": (
        usual(vocabulary={"a-b": {"expand": 5}, "a_b": {"expand": 6}}),
        "would have two stages compare_a_b, as names differ only in - and _",
    ),
    "no vocabulary": (usual(vocabulary={}), "vocabulary is {}; expected keep"),
    "an unknown key of a vocabulary": (
        usual(vocabulary={"exapnd": 5}),
        "unknown key vocabulary.exapnd; the nearest known key is vocabulary.expand",
    ),
    "an unknown script": (usual(vocabulary={"swap": 5, "swap_scripts": "Klingonese"}), "vocabulary.swap_scripts: --swap-script Klingonese"),
    "a taken name": (usual(vocabulary={"data": {"expand": 5}}), "vocabulary.data has the name of an output folder"),
    "a negative size": (usual(vocabulary={"replace": -5}), "vocabulary.replace is -5; expected more than 0"),
    "a size beyond all": (usual(vocabulary={"expand": 100_000_000}), "vocabulary.expand is 100,000,000; expected at most 1,000,000 tokens"),
    "an unknown tokenizer": (usual(vocabulary={"tokenizer": "tok"}), "vocabulary.tokenizer is tok, which does not exist"),
    "a word for a vocabulary": (usual(vocabulary="expand"), "vocabulary is 'expand'; expected keep, or for example {expand: 2000}"),
    "a kept vocabulary with methods": (
        usual(vocabulary={"keep": True, "methods": "mean"}),
        "selects how new tokens are initialised, but keep adds none",
    ),
    "an unknown method": (usual(transfer="focsu"), "transfer.methods names focsu; did you mean focus?"),
    "no method": (usual(transfer=[]), "transfer.methods is empty; expected methods, such as mean, or best"),
    "a method without its material": (
        usual(transfer="sava"),
        "transfer.methods names sava, which needs --helper; give it in transfer.options",
    ),
    "two budgets": (usual(training={"steps": 5, "tokens": 5}), "training.tokens and training.steps both say how long to train"),
    "replay without text": (usual(languages={"sl": "sl.txt"}, training={"replay": 0.2}), "but languages.en has no texts to replay"),
    "too much replay": (usual(training={"replay": 1.0}), "training.replay is 1; expected a share from 0 to less than 1"),
    "an unknown recipe": (usual(training={"recipe": "gams/fcous"}), "there is no recipe gams/fcous; did you mean gams/focus?"),
    "no such recipe file": (usual(training={"recipe": "own.yaml"}), "training.recipe is own.yaml, which does not exist"),
    "an unknown override": (usual(training={"overrides": "schedule.max_step=3"}), "unknown key schedule.max_step"),
    "an unknown task": (usual(evaluation={"tasks": "completion_sll"}), "there is no task completion_sll; did you mean completion_sl?"),
    "a text called as a language": (usual(evaluation={"texts": {"sl": "held.txt"}}), "evaluation.texts.sl has the name of a language"),
    "a text whose name is two words": (usual(evaluation={"texts": {"my text": "held.txt"}}), "evaluation.texts has the name 'my text'"),
    "no such prompts": (usual(evaluation={"prompts": "p.jsonl"}), "evaluation.prompts is p.jsonl, which does not exist"),
    "prompts that are none": (usual(evaluation={"prompts": "body.jsonl"}), "evaluation.prompts: "),
    "an unknown device": (usual(machine={"device": "tpu"}), "machine.device is 'tpu'; expected cpu, gpu"),
    "a limit of no time": (usual(machine={"hours": 0.001}), "machine.hours is 0.001, less than a minute"),
    "an open quotation": (
        usual(transfer={"options": "--vectors 'a b"}),
        'transfer.options is "--vectors \'a b", in which a quotation mark',
    ),
    "no process": (usual(machine={"processes": 0}), "machine.processes is 0; expected more than 0"),
    "the checkout as its output": (usual(machine={"work_dir": str(ROOT)}), "machine.work_dir is"),
    "a file as its output": (usual(machine={"work_dir": "sl.txt/out"}), "sl.txt is a file; give a folder of its own"),
    "outputs among the texts": (usual(languages={"sl": "texts"}, machine={"work_dir": "texts/out"}), "outputs would be read as text"),
    "a comma in the output's path": (usual(machine={"work_dir": "a,b"}), "with the character ,, which a recipe reads as more than text"),
    "braces in a path": (usual(machine={"work_dir": "a{b}"}), "contains braces, which a pipeline reads as a reference"),
    "a name that is none": (usual(name="a b"), "name is 'a b'; expected letters, digits"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_files_are_refused_before_anything_runs(case: str, place: Path) -> None:
    content, sentence = REFUSED[case]
    path, before = write(place, content), sorted(place.rglob("*"))
    with pytest.raises(ValueError) as refused:
        run.main([str(path)])
    assert sentence in str(refused.value)
    assert sorted(place.rglob("*")) == before


def test_all_that_is_wrong_is_said_at_once(place: Path) -> None:
    path = write(place, usual(transfer="focsu", text={"clean": "strong"}, machine={"processes": 0}))
    with pytest.raises(ValueError, match=r"3 problems:\n  - text\.clean .*\n  - machine\.processes .*\n  - transfer\.methods "):
        load_project(path)


def test_settings_on_the_command_line(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place.parent)
    loaded = load_project(write(place, usual(training={"tokens": 5000})), ["machine.work_dir=out", "training.steps=7", "transfer=[mean]"])
    assert (loaded.work_dir, loaded.project.training.steps, loaded.project.transfer.methods) == (place.parent / "out", 7, ("mean",))
    for written, training in {
        "training.tokens=20_000": {"tokens": 20_000},
        "training={steps: 2e3, replay: 1e-1}": {"steps": 2000, "replay": 0.1},
    }.items():
        found = load_project(place / "slovene.yaml", [written]).project.training
        assert {key: getattr(found, key) for key in training} == training
    for override, sentence in {
        "steps": "not of the form key=value",
        "training={steps: 7, tokens: 5}": "both say how long to train",
        "source.x=1": "sets a key within source, which the file gives as",
    }.items():
        with pytest.raises(ValueError, match=sentence):
            load_project(place / "slovene.yaml", [override])
    with pytest.raises(ValueError, match=r"is for a project, and .* is a pipeline"):
        run.main([str(ROOT / "recipes/pipelines/bundled/sweep.yaml"), "seed=1"])


def test_a_place_with_spaces_and_letters_beyond_ascii(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recipes read such paths too, and ~ is the home folder, which no shell fills in behind key=."""
    folder = place / "moj čas (1)"
    folder.mkdir()
    for name in ("model", "sl.txt", "en.txt"):
        (place / name).rename(folder / name)
    pipeline = checked(expand_project(write(folder, usual())))
    [run] = tasks_of(pipeline, "train_source")
    assert recipe_of(pipeline, run).data.train[0] == f"{folder}/slovene_output/data/source/sl"
    (folder / "a b.vec").write_text("")
    given = {"methods": "focus-words", "options": "--vectors 'a b.vec' --seed 2"}
    words = commands(checked(expand_project(write(folder, usual(transfer=given)))))["start_focus_words"]
    assert words[words.index("--vectors") :][:4] == ["--vectors", str(folder / "a b.vec"), "--seed", "2"]
    monkeypatch.setenv("HOME", str(place))
    assert load_project(folder / "slovene.yaml", ["machine.work_dir=~/out"]).work_dir == place / "out"


def test_the_ejected_pipeline_is_the_same(place: Path) -> None:
    path = write(place, usual())
    assert run.main([str(path), "--eject", str(place / "whole.yaml")]) == 0
    text = (place / "whole.yaml").read_text(encoding="utf-8")
    assert text == eject_text(path) and text.count("  # ") >= 15
    assert pipeline_from_mapping(yaml.safe_load(text)) == pipeline_from_mapping(expand_project(path))
    with pytest.raises(ValueError, match=r"whole\.yaml exists; remove it or choose another name for --eject"):
        run.main([str(path), "--eject", str(place / "whole.yaml")])


def test_checkpoints_that_nothing_needs_go_unless_they_are_to_stay(place: Path) -> None:
    cleaned = ["clean_sl", "clean_en"]
    for keep, expected in ((True, cleaned), (False, [*cleaned, "nemo_best", "train_best", "nemo_source", "train_source"])):
        pipeline = pipeline_from_mapping(expand_project(write(place, usual(machine={"keep": keep}))))
        gone = [name for name, stage in pipeline.stages.items() if not stage.keep]
        assert gone == expected
        readers = {
            need.stage for stage in pipeline.stages for task in tasks_of(pipeline, stage) for need in dependencies_of(pipeline, task)
        }
        assert set(gone) <= readers


def test_init_writes_a_sound_file(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(place)
    words = ["--source", "model", "--language", "sl=sl.txt", "en=en.txt", "--heldout", "sl=held.txt"]
    for more in ([], ["--vocabulary", "replace=300"], ["--vocabulary", "keep"]):
        (place / "sl.yaml").unlink(missing_ok=True)
        assert init.main(["sl.yaml", *words, *more]) == 0
        text = (place / "sl.yaml").read_text(encoding="utf-8")
        assert all("#" in line for line in text.splitlines() if not line.endswith(":")) and len(text.splitlines()) <= 25
        checked(expand_project(place / "sl.yaml"))
    assert init.main(["2 čas.yaml", *words]) == 0 and load_project(place / "2 čas.yaml").project.name == "_2_čas"
    assert "next, `scion run '2 čas.yaml'`" in capsys.readouterr().out
    for wrong, sentence in {
        ("sl.yaml", *words): "sl.yaml exists; remove it or choose another name",
        ("b.yaml", "--source", "model"): "--language is missing; give it, or answer on a terminal",
        ("b.yaml", "--source", "model", "--language", "sl.txt"): "--language sl.txt is not of the form CODE=PATH",
        (
            "b.yaml",
            "--source",
            "model",
            "--language",
            "sl=no.txt",
        ): "b.yaml cannot run: languages.sl.texts names no.txt, which does not exist",
        ("b.yaml", *words, "--vocabulary", "grow=3"): "--vocabulary is 'grow=3'; expected expand=N, swap=N, replace=N or keep",
        ("b.txt", *words): "the file name b.txt does not end in .yaml",
    }.items():
        with pytest.raises(ValueError, match=sentence.replace(".", r"\.")):
            init.main(list(wrong))
        assert not (place / "b.yaml").exists()


@pytest.mark.parametrize("processes", [1, 3, 8, 16, 64])
def test_the_batch_can_be_dealt_out_to_all_gpus_that_init_finds(processes: int, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setattr("recipes.init.has_gpu", lambda: True)
    monkeypatch.setattr("recipes.init._num_gpus", lambda: processes)
    assert init.main(["sl.yaml", "--source", "model", "--language", "sl=sl.txt"]) == 0
    loaded = load_project(place / "sl.yaml").project
    assert (loaded.machine.device, loaded.machine.processes) == ("gpu", processes)
    checked(expand_project(place / "sl.yaml"))


def test_init_asks_on_a_terminal(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    (place / "model").rename(place / 'a "model" #1')
    answers = iter(["", 'a "model" #1', "sl=sl.txt", "en.txt"])
    monkeypatch.setattr("builtins.input", lambda question: next(answers))
    monkeypatch.setattr("recipes.init._is_asked", lambda: True)
    assert init.main([]) == 0
    assert list(load_project(place / "project.yaml").project.languages) == ["sl", "en"]


def test_a_recipe_of_ones_own_is_sound(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    assert init.main(["--recipe"]) == 0
    assert all("#" in line for line in (place / "recipe.yaml").read_text().splitlines() if not line.endswith(":"))
    checked(expand_project(write(place, usual(training={"recipe": "recipe.yaml"}))))


def test_every_key_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    for name, key in keys().items():
        assert (find(name) == key and len(key.meaning) > 5 and key.default is not None) or name in ("source", "languages"), name
        assert key.example or name in ("text", "transfer", "training", "evaluation", "machine"), name
    assert explain.main(["languages.sl.texts", "replay", "schedule.learning_rate"]) == 0
    told = capsys.readouterr().out
    assert "languages.CODE.texts\n  files or folders of text" in told and "training.replay" in told and "(of a recipe)" in told
    assert explain.main([]) == 0 and explain.main(["--recipe"]) == 0
    for word, sentence in {
        "heldot": "there is no key heldot; the nearest is heldout",
        "texts": "several sections have a key texts: languages.CODE.texts, evaluation.texts",
    }.items():
        with pytest.raises(ValueError, match=sentence):
            explain.main([word])
