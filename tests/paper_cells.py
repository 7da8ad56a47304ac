"""Three cells of each table of the papers, recomputed from answers, texts and weights with libraries of the field alone: no code of the reports."""

from __future__ import annotations

import json
import random
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks.paper_runs import read_table

Checked = Iterator[tuple[str, object]]  # a cell as it is printed, and what it has to be
CELLS: dict[str, Callable[[Path], Checked]] = {}


def _of(*rows: str) -> Callable[[Callable[[Path], Checked]], Callable[[Path], Checked]]:
    def named(check: Callable[[Path], Checked]) -> Callable[[Path], Checked]:
        CELLS.update(dict.fromkeys(rows, check))
        return check

    return named


def _frame(folder: Path, file: str, title: str = "") -> pd.DataFrame:
    header, rows = read_table(folder / file, title)
    counts = Counter[str]()
    names = []
    for name in header:  # columns of one name, such as an accuracy for each task, get numbers
        counts[name] += 1
        names.append(name if counts[name] == 1 else f"{name} {counts[name]}")
    return pd.DataFrame([row for row in rows if len(row) == len(names)], columns=names).set_index(names[0])


def _samples(folder: Path, model: str, task: str) -> list[dict[str, Any]]:
    text = (folder / "results" / model / "samples" / f"{task}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.strip().split("\n")]


def _tokens(folder: Path, tokenizer: str, text: str) -> int:
    from tokenizers import Tokenizer

    return len(Tokenizer.from_file(str(folder / tokenizer / "tokenizer.json")).encode(text, add_special_tokens=False).ids)


def _t_interval(values: list[float]) -> str:
    from scipy import stats

    mean, error = np.mean(values), stats.sem(values)
    low, high = stats.t.interval(0.95, len(values) - 1, mean, error) if error else (mean, mean)
    return f"{mean:.2f} [{low:.2f}, {high:.2f}]"


@_of("gams T1")
def _corpora(folder: Path) -> Checked:
    counted = {}
    for name in ("KAS", "HrNews", "Wikipedia"):
        counted[name] = sum(_tokens(folder, "opt", line) for line in (folder / f"{name}.txt").read_text("utf-8").split("\n"))
    column = _frame(folder, "report/report.md", "Tokens of each corpus")["# tokens (OPT tokenizer)"]
    yield column["KAS"], f"{counted['KAS']:,}"
    yield column["Wikipedia"], f"{counted['Wikipedia']:,}"
    yield column["Total"], f"{sum(counted.values()):,}"


@_of("gams T2")
def _an_answer(folder: Path) -> Checked:
    """The tokens themselves, as transformers chooses them."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer, model = (kind.from_pretrained(folder / "falcon") for kind in (AutoTokenizer, AutoModelForCausalLM))
    ids = tokenizer(json.loads((folder / "prompts.jsonl").read_text("utf-8"))["prompt"], return_tensors="pt").input_ids
    with torch.inference_mode():
        answer = model.generate(ids, min_new_tokens=16, max_new_tokens=16, do_sample=False)[0, ids.shape[1] :].tolist()
    for line in (folder / "generated/texts").glob("*"):
        for told in map(json.loads, line.read_text("utf-8").splitlines()):
            yield told["token_ids"], answer
    yield told["num_prompt_tokens"], ids.shape[1]


@_of("gams T3")
def _rows_of_tasks(folder: Path) -> Checked:
    printed = (folder / "printed_1").read_text("utf-8")
    for task, file in (("BoolQ", "BoolQ/test.jsonl"), ("CB", "CB/test.jsonl"), ("COPA", "COPA/test.jsonl")):
        with zipfile.ZipFile(folder / "downloads/SuperGLUE-HumanT.zip") as archive:
            rows = archive.read(next(name for name in archive.namelist() if name.endswith(file))).decode().split("\n")
        told = re.search(rf"/{task} .*?test (\d+)", printed)
        yield told and int(told[1]), len([row for row in rows if row.strip()])


@_of("gams T4", "gams T5", "gams T6")
def _slovene_tasks(folder: Path) -> Checked:
    from sklearn.metrics import f1_score

    def answers(model: str, task: str) -> tuple[list[str], list[str]]:
        told = _samples(folder, model, f"sl_{task}_gen")
        return [one["target"] for one in told], [one["resps"][0][0].strip() for one in told]

    def right(model: str, task: str) -> list[float]:
        return [float(wanted == found) for wanted, found in zip(*answers(model, task), strict=True)]

    first = _frame(folder, "report/tables.tex", "As Table 4 of the GaMS")
    yield first["Acc."]["source"], _t_interval(right("source", "boolq"))
    yield first["Acc. 3"]["adapted"], _t_interval(right("adapted", "copa"))
    wanted, found = answers("source", "cb")
    yield (
        first["F$_1$"]["source"].split()[0],
        f"{f1_score(wanted, found, average='macro', labels=['Drži.', 'Ne drži.', 'Ne vemo.'], zero_division=0):.2f}",
    )
    second = _frame(folder, "report/tables.tex", "As Table 5 of the GaMS")
    wanted, found = [], []
    for one in _samples(folder, "source", "sl_multirc_gen"):
        wanted.append([number in one["doc"]["right"] for number in (1, 2)])
        found.append([str(number) in one["resps"][0][0].replace(",", " ").split() for number in (1, 2)])
    yield second["F$_1$"]["source"].split()[0], f"{f1_score(np.ravel(wanted), np.ravel(found)):.2f}"
    marks = zip(wanted, found, strict=True)
    yield second["EM"]["source"], _t_interval([float(a == b) for a, b in marks])
    yield second["Acc."]["adapted"], _t_interval(right("adapted", "rte"))
    third = _frame(folder, "report/tables.tex", "As Table 6 of the GaMS").loc["adapted"]
    labels = ["Sosledje.", "Nevtralnost.", "Nasprotovanje."]
    each = f1_score(*answers("adapted", "si_nli"), labels=labels, average=None, zero_division=0)
    yield third["Accuracy"], _t_interval(right("adapted", "si_nli"))
    yield third["Entailment F$_1$"].split()[0], f"{each[0]:.2f}"
    yield third["Contradiction F$_1$"].split()[0], f"{each[2]:.2f}"


@_of("gams T7")
def _simplification(folder: Path) -> Checked:
    table = _frame(folder, "report/tables.tex", "As Table 7 of the GaMS")
    for model, shots in (("source", 0), ("source", 10), ("adapted", 3)):
        told = _samples(folder, model, f"sl_senta_{shots}shot")
        scores = [_sari(one["doc"]["source"], one["resps"][0][0], one["doc"]["references"]) for one in told]
        yield table[f"$k = {shots}$"][model].split()[0], f"{np.mean(scores):.2f}"


def _sari(source: str, output: str, references: list[str]) -> float:
    """Xu et al. (2016), equations 4 to 9, from sets of n-grams; deletions by precision alone."""
    from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

    def grams(text: str, n: int) -> Counter[tuple[str, ...]]:
        words = Tokenizer13a()(text.lower()).split()
        return Counter(tuple(words[place : place + n]) for place in range(len(words) - n + 1))

    def share(good: Counter[tuple[str, ...]], of: Counter[tuple[str, ...]]) -> float:
        return sum(good[gram] / of[gram] for gram in good if of[gram]) / len(of) if of else 1.0

    def f1(precision: float, recall: float) -> float:
        return 2 * precision * recall / (precision + recall) if precision + recall else 0.0

    kept, deleted, added = [], [], []
    for n in range(1, 5):
        ours, theirs = (Counter({gram: count * len(references) for gram, count in grams(text, n).items()}) for text in (source, output))
        wanted = sum((grams(text, n) for text in references), Counter[tuple[str, ...]]())
        both, right = ours & theirs, ours & wanted
        kept.append(f1(share(both & wanted, both), sum((both & wanted).values()) / sum(right.values()) if right else 1.0))
        deleted.append(share((ours - theirs) - wanted, ours - theirs))
        new, to_add = set(theirs) - set(ours), set(wanted) - set(ours)
        found = len(new & set(wanted))
        added.append(f1(found / len(new) if new else 1.0, found / len(to_add) if to_add else 1.0))
    return 100 * float(np.mean([np.mean(kept), np.mean(deleted), np.mean(added)]))


@_of("sava T1")
def _parameters(folder: Path) -> Checked:
    for number, (layers, ffn, rows) in enumerate(((32, 14336, 32_000), (32, 14336, 32_768), (32, 14336, 128_256)), start=1):
        count = 2 * rows * 4096 + layers * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * ffn + 2 * 4096) + 4096
        yield _printed(folder, number, "parameters"), f"{count:,}"


def _printed(folder: Path, number: int, name: str) -> str | None:
    found = re.search(rf"^  {name}  +(.+)$", (folder / f"printed_{number}").read_text("utf-8"), re.MULTILINE)
    return found and found[1]


@_of("sava T2")
def _fertility(folder: Path) -> Checked:
    table = _frame(folder, "report/report.md", "Tokens per word")
    for tokenizer, text in (("mistral", "CX-IT"), ("minerva", "CX-IT"), ("minerva", "WP-EN")):
        lines = (folder / f"{text.lower().replace('-', '.')}.jsonl").read_text("utf-8").splitlines()
        words = [word for line in lines for word in json.loads(line)["text"].split()]
        yield table[text][tokenizer], f"{sum(_tokens(folder, tokenizer, f' {word}') for word in words) / len(words):.2f}"


@_of("sava T3", "sava T4", "sava T10", "sava T11")
def _ita_bench(folder: Path) -> Checked:
    language = "it" if (folder / "results/source/samples/itabench_boolq_it.jsonl").exists() else "en"
    row = _frame(folder, "report/tables.tex", "Italian translated" if language == "it" else "over English").loc["source"]
    means = []
    for column, task in zip(row.index, ("hellaswag", "mmlu", "arc_easy", "piqa", "sciq", "boolq"), strict=False):
        told = _samples(folder, "source", f"itabench_{task}_{language}")
        right = [float(max(range(len(one["resps"])), key=lambda n: one["resps"][n][0][0]) == one["target"]) for one in told]
        means.append(100 * np.mean(right))
        error = 100 * np.std(right, ddof=1) / len(right) ** 0.5
        yield re.sub(r"\\(mathbf|underline)\{([\d.]+)\}", r"\2", row[column]), rf"${means[-1]:.2f}_{{\pm {error:.2f}}}$"
    yield row["AVG"], f"${np.mean(means):.2f}$"


@_of("sava T7")
def _likeness(folder: Path) -> Checked:
    """Mean cosine of rows described by their products with 256 anchors, in float64: section 6 of the paper, our draw of the anchors."""
    from safetensors.numpy import load_file
    from transformers import AutoTokenizer
    from transformers.models.gpt2.tokenization_gpt2 import bytes_to_unicode

    tokenizer = AutoTokenizer.from_pretrained(folder / "minerva")
    byte_of = {letter: byte for byte, letter in bytes_to_unicode().items()}
    texts = {
        bytes(byte_of[letter] for letter in token): row for token, row in tokenizer.vocab.items() if row not in tokenizer.all_special_ids
    }
    draw = random.Random(42)
    anchors = [
        text for begins in (True, False) for text in draw.sample([one for one in sorted(texts) if one.startswith(b" ") == begins], 128)
    ]

    def described(model: str) -> NDArray[np.float64]:
        rows = load_file(folder / model / "model.safetensors")["model.embed_tokens.weight"].astype(np.float64)
        products = rows[[texts[one] for one in sorted(texts)]] @ rows[[texts[one] for one in anchors]].T
        return np.asarray(products / np.linalg.norm(products, axis=1, keepdims=True))

    cells = _frame(folder, "likeness/similarity.csv").loc["input"].set_index(["model", "other"])["similarity"]
    for model, other in (("minerva", "sava_2000"), ("random_0", "clp_2000"), ("mean_0", "mean_2000")):
        folders = [name if name == "minerva" else f"hf/{name}" for name in (model, other)]
        first, second = map(described, folders)
        yield f"{float(cells[model, other]):.5f}", f"{(first * second).sum(axis=1).mean():.5f}"


@_of("sava T8", "sava T9")
def _prompts(folder: Path) -> Checked:
    rows = [json.loads(line)["prompt"] for line in (folder / "generated/prompts.jsonl").read_text("utf-8").strip().split("\n")]
    for number, prompt in enumerate(rows[:3]):
        *shots, asked = prompt.split("\n\n")
        if "Traduci" in prompt:
            form = "Traduci dall'Inglese all'Italiano\nText: eng_Latn {0}\u2028a\nTranslation:{1}"
            given = [form.format(f"dev {(n := shot.split()[6])}", f" ita_Latn dev {n}\u2028a") for shot in shots]
            yield (shots, asked, len(shots)), (given, form.format(f"devtest {number}", ""), 5)
        else:
            form = "Contesto: La torre {0}.\nDomanda: Quando?\nRisposta:{1}"
            given = [form.format(n := shot.split()[3].rstrip("."), f" 19{n}0") for shot in shots]
            yield (shots, asked, len(shots)), (given, form.format(number, ""), 2)


@_of("ofa T1")
def _factorised(folder: Path) -> Checked:
    """Of transformers' own model of XLM-R's shape, whose first two rows of positions the engine has not."""
    import torch
    from transformers import XLMRobertaConfig, XLMRobertaForMaskedLM

    with torch.device("meta"):
        shape = XLMRobertaConfig(vocab_size=401_145, max_position_embeddings=512, type_vocab_size=1)
        whole = sum(parameter.numel() for parameter in XLMRobertaForMaskedLM(shape).parameters())
    for number, size in ((1, 100), (3, 400), (4, 768), (7, 400)):
        tables = size * 401_145 + (size * 768 if size < 768 else 0)
        yield _printed(folder, number, "parameters"), f"{whole - 768 * 401_145 + tables:,}"


def _by_language(folder: Path, model: str, start: str) -> list[float]:
    """Score of each language in percent, mean over the seeds."""
    tasks = json.loads((folder / "results" / model / "result.json").read_text("utf-8"))["tasks"]
    found = []
    for name, task in tasks.items():
        if name.startswith(start):
            metric = task["metrics"].get("f1") or task["metrics"]["acc"]
            found.append(100 * float(np.mean(metric.get("by_seed", [metric["value"]]))))
    return found


@_of("ofa T2", "ofa T3", "ofa T5", "ofa T6")
def _encoders(folder: Path) -> Checked:
    page = "report/across_languages.md"
    whole = _frame(folder, page, "Tail, head and all languages")
    changes = _frame(folder, page, "Languages that score higher")
    for title, start in (("SR-B", "bible_"), ("NER", "ner_"), ("POS", "pos_")):
        ofa, other, before = (_by_language(folder, model, start) for model in ("ofa", "random", "ofa_0"))
        column = next(name for name in whole if name.startswith(f"{title}, all"))
        yield whole[column]["ofa"].split()[0], f"{np.mean(ofa):.1f}"
        better = sum(a > b for a, b in zip(ofa, other, strict=True))
        yield changes[title]["ofa"].rstrip(")").split(" ▲")[0].split(" ▼")[0], f"{better}/{len(ofa)} ({np.mean(ofa) - np.mean(other):+.1f}"
        told = _frame(folder, page, "Before and after continued").iloc[0][title]
        yield told.split(" (")[0], f"{np.mean(before):.1f} → {np.mean(ofa):.1f}"
    family = _frame(folder, page, "SR-B by family")
    yield (
        family[next(name for name in family if name.startswith("all"))]["random"].split()[0],
        f"{np.mean(_by_language(folder, 'random', 'bible_')):.1f}",
    )
    seeds = json.loads((folder / "results/ofa/result.json").read_text("utf-8"))["tasks"]["ner_slv"]["metrics"]["f1"]["by_seed"]
    told = _samples(folder, "ofa", "ner_slv")
    wanted, found = (
        Counter(span for number, tags in enumerate(lines) for span in _spans(number, tags))
        for lines in zip(*((one["target"], one["resps"][0][0]) for one in told), strict=True)
    )
    yield f"{200 * (wanted & found).total() / (wanted.total() + found.total()):.4f}" in [f"{100 * seed:.4f}" for seed in seeds], True


def _spans(number: int, tags: str) -> list[tuple[int, str, int, int]]:
    """Entities of a sentence's tags (IOB2), each begun by a B."""
    words = tags.split(" ")
    starts = [place for place, tag in enumerate(words) if tag.startswith("B-")]
    ends = [next((n for n in range(start + 1, len(words)) if words[n] != f"I-{words[start][2:]}"), len(words)) for start in starts]
    return [(number, words[start], start, end) for start, end in zip(starts, ends, strict=True)]


@_of("ofa T4")
def _cost(folder: Path) -> Checked:
    row = _frame(folder, "report/across_languages.md", "Training to the best checkpoint").iloc[1]
    hours = 10_000 * 0.5 / 3600
    yield row["hours"], f"{hours:.2f}"
    yield row["device hours"], f"{4 * hours:.2f}"
    yield row["CO2 (kg)"], f"{4 * hours * 0.4 * 0.432:.2f}"


def _number(cell: str) -> str:
    """The figure of a shaded cell."""
    found = re.search(r"[\d.]+(?=\}?\$_)", cell)
    return found[0] if found else cell


@_of("low T1", "low T4", "low T5", "low T9", "low T10")
def _ways_to_adapt(folder: Path) -> Checked:
    from rouge_score.rouge_scorer import RougeScorer
    from sacrebleu import sentence_chrf
    from transformers import AutoTokenizer

    table = _frame(folder, "report/grid.tex")
    columns = {name.split(",")[0].replace("\\", ""): name for name in table}
    scorer = RougeScorer(["rougeL"], tokenizer=AutoTokenizer.from_pretrained(folder / "mt5"))
    for model, task in (("source", "mt_en_my"), (table.index[1], "mt_en_my"), (table.index[-1].replace("\\", ""), "sum_my")):
        scores = []
        for one in _samples(folder, model, task):
            wanted = one["doc"]["references"][0]
            answers = [answer.strip() for answer in one["resps"][0]]
            if task.startswith("mt"):
                scores += [sentence_chrf(answer, [wanted]).score for answer in answers]
            else:
                scores += [100 * scorer.score(wanted, answer)["rougeL"].fmeasure for answer in answers]
        shown = _number(table[columns[task]][model.replace("_", "\\_")])
        yield shown, f"{np.mean(scores):.{len(shown.partition('.')[2])}f}"


@_of("low T2", "low T11")
def _perplexity(folder: Path) -> Checked:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer, model = (kind.from_pretrained(folder / "llama2") for kind in (AutoTokenizer, AutoModelForCausalLM))
    nats = tokens = 0.0
    texts = (folder / "heldout.my.txt").read_text("utf-8").splitlines()
    for text in texts:
        ids = torch.tensor([[tokenizer.bos_token_id or tokenizer.eos_token_id, *tokenizer(text).input_ids]])  # the first token counts too
        with torch.inference_mode():
            nats += float(model(ids, labels=ids).loss) * (ids.shape[1] - 1)
        tokens += ids.shape[1] - 1
    row = _frame(folder, "report/report.md", "Text").loc["my, source"]
    size = sum(len(text.encode()) for text in texts)
    yield row["perplexity per token"], f"{np.exp(nats / tokens):,.0f}"
    yield row["bits per byte"].split()[0], f"{nats / np.log(2) / size:.3f}"
    yield row["bytes per token"], f"{size / tokens:.2f}"


@_of("low T3")
def _speed(folder: Path) -> Checked:
    """Seconds are the clock's; what was said in them is counted in the texts."""
    figures = json.loads((folder / "generated/efficiency.json").read_text("utf-8"))["models"]
    page = _frame(folder, "report/report.md", "Speed of generation")
    bytes_per_second = {}
    for model in ("source", "align"):
        told = [json.loads(line) for line in (folder / f"generated/texts/{model}.jsonl").read_text("utf-8").strip().split("\n")]
        seconds = sum(repeat["seconds"] for repeat in figures[model]["repeats"])
        bytes_per_second[model] = sum(len(one["text"].encode()) for one in told) / seconds
        yield page[model]["tokens/s"].split(" [")[0], f"{sum(len(one['token_ids']) for one in told) / seconds:,.0f}"
    yield page["align"]["speedup"].split(" [")[0], f"{bytes_per_second['align'] / bytes_per_second['source']:.2f}"


@_of("low T6")
def _of_training(folder: Path) -> Checked:
    """A Llama 2 of 7 B in closed form; adapters of rank 8 on all seven projections of each layer."""
    layers, size, ffn, rows = 32, 4096, 11008, 32_000
    yield _printed(folder, 1, "parameters"), f"{2 * rows * size + layers * (4 * size**2 + 3 * size * ffn + 2 * size) + size:,}"
    by_part = (folder / "printed_1").read_text("utf-8").partition("parameters by part")[2]
    yield re.findall(r"^  adapters +([\d,]+)$", by_part, re.MULTILINE), [f"{layers * 8 * (4 * 2 * size + 3 * (size + ffn)):,}"]
    yield _printed(folder, 1, "tokens per step"), f"{8 * 512:,}"


@_of("low T7")
def _of_generation(folder: Path) -> Checked:
    """The paper's own figures."""
    settings = json.loads((folder / "generated/efficiency.json").read_text("utf-8"))["conditions"]["settings"]
    for name, wanted in (("temperature", 0.8), ("top_k", 40), ("top_p", 0.9), ("repetition_penalty", 1.1), ("num_beams", 5)):
        yield settings[name], wanted


@_of("low T8")
def _low_resource_prompts(folder: Path) -> Checked:
    first, second = (
        [json.loads(line)["prompt"] for line in (folder / f"generated_{task}/prompts.jsonl").read_text("utf-8").strip().split("\n")]
        for task in ("mt_en_my", "sum_my")
    )
    for number in range(2):
        yield first[number], f"အင်္ဂလိပ်မှ မြန်မာသို့ ဘာသာပြန်ပါ။:\neng_Latn devtest {number}\u2028a ="
    yield second[0], "အောက်ပါစာသားကို မြန်မာဘာသာဖြင့် အကျဉ်းချုပ်ရေးပါ။ ဆောင်းပါး: dolgo 0. dolgo 0. dolgo 0.  အကျဉ်းချုပ်:"
