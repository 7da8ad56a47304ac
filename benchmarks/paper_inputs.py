"""What the papers' rows start from, made small: tokenizers, models of random weights, files in published form, runs as training leaves them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from common.artifacts import write_manifest
from tests.conversion.embedding_fixtures import demo_text
from tests.eval import published_forms as forms
from tests.eval.encoder_rows import tiny_encoder
from tests.eval.tiny_models import tiny_llama, tiny_opt, tiny_tokenizer
from tests.processes import call_command

_POSITIONS = 4096
_STORY = ("Old mills stand by rivers.", "Stari mlin stoji ob reki.", "Il vecchio mulino è vicino al fiume.", "မြစ်ဘေးမှာ စက်ဟောင်း ရှိသည်။")


def write_inputs(paper: str, folder: Path) -> None:
    """All that the commands of a paper name and do not write themselves."""
    folder.mkdir(parents=True)
    {"gams": _gams, "sava": _sava, "low": _low_resource, "ofa": _ofa}[paper](folder)


def _model(
    folder: Path, tokenizer: Any, make: Callable[..., Any], number: int, asked: Sequence[tuple[str, str]] = (), **facts: Any
) -> None:
    model = make(vocab_size=len(tokenizer), num_positions=_POSITIONS, seed=number)
    if asked:
        _learn(model, tokenizer, asked)
    elif facts:  # adapted models are to answer differently: of random weights as they are all prefer the shortest answer
        model.get_output_embeddings().weight.data.mul_(30)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if facts:
        write_manifest(folder, stage="conversion.nemo_to_hf", facts=facts)


def _tokenizers(folder: Path, languages: Mapping[str, str], vocab_size: int = 600) -> dict[str, Any]:
    found = {}
    for name, language in languages.items():
        found[name] = tiny_tokenizer(texts=demo_text(language).splitlines()[:150], vocab_size=vocab_size)
        found[name].save_pretrained(folder / name)
    return found


def _text(path: Path, language: str, first: int, last: int) -> Path:
    lines = demo_text(language).splitlines()[first:last]
    if path.suffix == ".jsonl":
        path.write_bytes(forms.json_lines({"text": line} for line in lines if line))
    else:
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _run(folder: Path, name: str, *, steps: Sequence[int] = tuple(range(1, 9)), recipe: str = "gams/focus") -> None:
    """A run as `recipes.train` leaves it: its recipe and a record a step, validations beside."""
    from recipes.rules.compose import compose_recipe
    from recipes.runs.run_dir import record_recipe

    run, draw = folder / "work" / name, random.Random(name)
    run.mkdir(parents=True)
    record_recipe(run, compose_recipe(recipe))
    records: list[dict[str, float]] = []
    for number, step in enumerate(steps, start=1):
        loss = 8 - 4 * number / len(steps) + draw.random()
        records.append({"step": step, "loss": loss, "tokens": 4096 * step, "bytes": 16000 * step, "seconds_per_step": 0.5})
        if number % 4 == 0 and not recipe.startswith("ofa"):
            records.append({"step": step, "validation_loss": loss + 0.1})
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records), encoding="utf-8")


def _prepare(folder: Path, *sets: str) -> None:
    call_command("eval.prepare", *sets, "--source", folder / "downloads", "--output", folder / "eval_data", "--sample")


def _downloads(folder: Path) -> Path:
    (folder / "downloads").mkdir()
    forms.NUM = 12  # more rows than the most examples
    return folder / "downloads"


def _gams(folder: Path) -> None:
    tokenizers = _tokenizers(folder, {"tokenizer": "sl", "english": "en", "tokenizer_40k": "sl"})
    tiny_tokenizer(texts=demo_text("sl").splitlines()[:150], vocab_size=900).save_pretrained(folder / "tokenizer_80k")
    _model(folder / "falcon", tokenizers["english"], tiny_llama, 3)
    corpora = {"KAS": "sl", "HrNews": "hr", "Wikipedia": "en"}
    for place, name in enumerate(corpora):
        _text(folder / f"{name}.txt", "en" if name == "Wikipedia" else "sl", 100 * place, 100 * place + 60)
    rows = [f"- {{name: {name}, files: [{name}.txt], language: {language}}}\n" for name, language in corpora.items()]
    (folder / "corpora.yaml").write_text("".join(rows), encoding="utf-8")
    for language in ("sl", "en"):
        _text(folder / f"subtitles.{language}.txt", language, 0, 100)
    words = sorted({word.lower() for word in demo_text("sl").split() if word.isalpha()})
    (folder / "sloleks.tsv").write_text("\n".join(words), encoding="utf-8")
    (folder / "prompts.jsonl").write_bytes(forms.json_lines([{"id": "1", "prompt": "This is the initial run of the Falcon model."}]))
    downloads = _downloads(folder)
    forms.write_superglue(downloads, forms.superglue_rows())
    forms.write_si_nli(downloads, forms.si_nli_rows(test_labels=False))
    forms.write_senta(downloads)
    _prepare(folder, "superglue_sl", "si_nli", "senta")
    asked = _solved(folder / "eval_data")
    tokenizer = tiny_tokenizer(texts=["".join(pair) for pair in asked], vocab_size=900)
    _model(folder / "opt", tokenizer, tiny_opt, 1, asked)
    _model(folder / "hf", tokenizer, tiny_opt, 2, asked, method="focus", head="copied", seed=1, step=13_400)
    for name in ("focus", "random"):
        _run(folder, name)


def _learn(model: Any, tokenizer: Any, asked: Sequence[tuple[str, str]], num_steps: int = 80) -> None:
    """Teach a model the form of the answers, loss on them alone, so that tables have scores and intervals; rows of one size at a time."""
    import torch

    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():  # nearer to uniform than the spread that evaluation tests want
        for parameter in model.parameters():
            parameter.mul_(0.1 if parameter.ndim == 2 else 1.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    encoded = [[tokenizer(text)["input_ids"] for text in pair] for pair in asked]
    model.train()
    for _ in range(num_steps):
        batch = [encoded[int(i)] for i in torch.randint(len(encoded), (8,), generator=generator)]
        longest = max(len(prompt) + len(answer) for prompt, answer in batch)
        labels = torch.tensor([[-100] * len(prompt) + answer + [-100] * (longest - len(prompt) - len(answer)) for prompt, answer in batch])
        ids = torch.tensor([prompt + answer + [2] * (longest - len(prompt) - len(answer)) for prompt, answer in batch])
        loss = model(input_ids=ids, attention_mask=(ids != 2).long(), labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()


def _solved(data: Path) -> list[tuple[str, str]]:
    """Prompts of evaluated rows, each with an answer of a valid form."""
    from eval.running.task_runs import find_tasks

    tasks = find_tasks(["sl_generative"], metadata={"data": str(data), "wording": "2024-07"})
    documents = [(i.args[0], i.doc) for task in tasks.values() for i in task.task.instances[:6]]
    return [(prompt, f" {doc['choices'][doc['label']] if 'label' in doc else '1, 2'}\n") for prompt, doc in documents]


def _sava(folder: Path) -> None:
    tokenizers = _tokenizers(folder, {"mistral": "en", "minerva": "sl", "llama": "en"}, vocab_size=4000)
    _model(folder / "mistral", tokenizers["mistral"], tiny_llama, 1)
    _model(folder / "llama", tokenizers["llama"], tiny_llama, 2)
    for name in ("minerva", "minerva_3b"):
        _model(folder / name, tokenizers["minerva"], tiny_llama, 3)
    steps = {"hf": (0, 200, 2000), "hf_llama": (0, 300, 3000)}
    for group, numbers in steps.items():
        for seed, method in enumerate(("random", "mean", "clp", "sava", "lapt"), start=4):
            for step in numbers:
                facts: dict[str, Any] = {} if method == "lapt" else {"method": method, "head": "transferred"}
                facts |= {"seed": 1, "step": step}
                facts["run"] = {"id": f"{group}/{method}", "output": f"{group}/{method}", "name": method, "recipe": "", "seed": 1}
                _model(folder / group / f"{method}_{step}", tokenizers["minerva"], tiny_llama, 10 * seed + step % 7, **facts)
    for name, language in {"cx.it": "it", "cx.en": "en", "wp.it": "it", "wp.en": "en"}.items():
        _text(folder / f"{name}.jsonl", {"it": "sl"}.get(language, language), 0 if name[0] == "c" else 100, 200)
    for name in ("random", "mean", "clp", "sava", "lapt", "minerva_350m", "minerva_1b", "minerva_3b", "pairs_2000", "pairs_all"):
        _run(folder, name, recipe="sava/mistral")
    _train(folder, tokenizers["minerva"])
    downloads = _downloads(folder)
    forms.write_itabench(downloads)
    forms.write_flores(downloads)
    questions = [
        {"id": f"{n}", "group": f"{n}:0", "context": f"La torre {n}.", "question": "Quando?", "answers": [f"19{n}0"]} for n in range(24)
    ]
    forms.write_squad_it(downloads, "test", questions[:12])
    forms.write_squad_it(downloads, "train", questions[12:])
    _prepare(folder, "itabench", "flores", "squad_it")


def _train(folder: Path, tokenizer: Any) -> None:
    """`work/run`, a run that really trained: twelve steps on two ranks, with checkpoints on the way."""
    _model(folder / "tiny", tokenizer, tiny_llama, 5)
    call_command("conversion.hf_to_nemo", "--input", folder / "tiny", "--output", folder / "nemo")
    for language in ("sl", "en"):
        text = _text(folder / f"run.{language}.txt", language, 0, 400)
        call_command("data_prep.to_megatron", "--input", text, "--tokenizer", folder / "tiny", "--output", folder / f"data_{language}")
    data = f"data.train=[{folder / 'data_sl'},{folder / 'data_en'}]"
    words = (f"model.checkpoint={folder / 'nemo'}", data, "data.languages=[it,en]", "run.checkpoint_every_steps=4")
    call_command("recipes.train", "--recipe", "sava/mistral", "--output", folder / "work" / "run", "+size=tiny", *words)


def _low_resource(folder: Path) -> None:
    lines = [line for line in _STORY for _ in range(8)] + demo_text("en").splitlines()[:100]
    tokenizer = tiny_tokenizer(texts=lines, vocab_size=500)
    for seed, name in enumerate(("llama2", "gemma2"), start=1):
        _model(folder / name, tokenizer, tiny_llama, seed)
    tokenizer.save_pretrained(folder / "mt5")
    for seed, way in enumerate(("lapt", "random", "focus", "mean", "merge", "align"), start=3):
        _model(folder / "hf" / way, tokenizer, tiny_llama, seed, method=None if way == "lapt" else way, head="tied", seed=1, step=100)
    draw = random.Random(1)
    syllables = ["က", "ခါ", "ငို", "စေ", "တာ", "ပို", "မီ", "ယူ", "လေ", "သာ", "na", "so", "ke", "ri", "mo"]
    texts = [" ".join("".join(draw.choices(syllables, k=3)) for _ in range(8)) for _ in range(1500)]
    for name in ("my.txt", "heldout.my.txt", "heldout.si.txt", "heldout.te.txt"):
        (folder / name).write_text("\n".join(texts if name == "my.txt" else texts[:20]) + "\n", encoding="utf-8")
    for number in (100, 250):  # of which the second is called by the paper's number
        added = (
            "--source",
            folder / "llama2",
            "--vocabulary",
            "expand",
            "--new-tokens",
            number,
            "--text",
            folder / "my.txt",
            "--method",
            "mean",
        )
        call_command("conversion.transfer", *added, "--output", folder / "hf_sizes" / f"n{500 if number == 250 else number}")
    from gensim.models import FastText
    from gensim.models.fasttext import save_facebook_model

    vectors = FastText([line.split() for line in texts], vector_size=16, min_count=1, bucket=50, workers=1)
    save_facebook_model(vectors, str(folder / "cc.my.300.bin"))
    call_command("conversion.hf_to_nemo", "--input", folder / "llama2", "--output", folder / "nemo")
    call_command("data_prep.to_megatron", "--input", folder / "my.txt", "--tokenizer", folder / "llama2", "--output", folder / "data")
    downloads = _downloads(folder)
    forms.write_flores(downloads)
    forms.write_xlsum(downloads)
    forms.write_greeksum(downloads)
    forms.write_mlsum(downloads)
    _prepare(folder, "flores", "xlsum", "greeksum", "mlsum_de")


def _ofa(folder: Path) -> None:
    encoder = tiny_encoder(folder / "encoder", demo_text("en") + "\n" + demo_text("sl"), max_positions=258)
    shape = ("--num-layers", 2, "--hidden-size", 32, "--num-attention-heads", 4, "--ffn-size", 64, "--max-positions", 258)
    steps = {"hf_random": ("random", 10_000), "hf_0": ("ofa", 0), "hf_10000": ("ofa", 10_000), "hf": ("ofa", 20_000)}
    for seed, (name, (method, step)) in enumerate(steps.items(), start=1):
        made = ("--model-type", "xlm-roberta", "--tokenizer", encoder.parent / "tokenizer", "--seed", seed, "--output", folder / name)
        call_command("conversion.new_model", *shape, *made)
        write_manifest(folder / name, stage="conversion.nemo_to_hf", facts={"method": method, "head": "tied", "seed": 1, "step": step})
    downloads = folder / "downloads"
    downloads.mkdir()
    forms.write_wikiann(downloads)
    forms.write_ud(downloads)
    forms.write_taxi1500(downloads)
    (folder / "tatoeba").mkdir()
    for name, text in (("slv", "Mlin stoji tu {}."), ("eng", "The mill is here {}.")):
        (folder / "tatoeba" / f"tatoeba.slv-eng.{name}").write_text("".join(f"{text.format(n)}\n" for n in range(12)), encoding="utf-8")
    for name in ("slv", "ceb", "eng"):
        (folder / f"{name}.txt").write_text("".join(f"400010{n:02}\tVerse {name} {n}.\n" for n in range(12)), encoding="utf-8")
    for name in ("random", "ofa"):
        _run(folder, name, steps=tuple(range(2500, 20_001, 2500)), recipe="ofa/mono")
