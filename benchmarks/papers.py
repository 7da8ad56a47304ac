"""List the tables and figures of the four papers with the commands that fill them; with --run, check that each has the paper's form.

A row works if its commands ran, on tiny models and synthetic rows in the published format, and their output has the form that
`paper_forms.yaml` describes: rows, columns in order, units, intervals, marks, panels.  --write updates docs/results/papers.md.
"""

from __future__ import annotations

import argparse
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.paper_runs import FAILS, LACKING, WORKS, Outcome, run_rows
from common import command

PAPERS = {"gams": "GaMS", "sava": "SAVA", "low": "low-resource", "ofa": "OFA"}
DRAWING = "a drawing"
STATES = {
    WORKS: "its commands ran, and their output has the paper's form",
    LACKING: "the same but for what is named, which is not available here; without weights nothing was run",
    FAILS: "a command failed, or its output has another form",
    DRAWING: "illustrates the method; there is nothing to measure",
}
DOCS = Path(__file__).resolve().parent.parent / "docs" / "results" / "papers.md"
BEGIN, END = "<!-- rows -->", "<!-- end -->"


@dataclass(frozen=True)
class Item:
    """One table or figure.

    Attributes:
        name: `gams T4`, `sava F2` ...
        shows: what it shows.
        commands: what fills it, one after the other, without `python -m`; none for a drawing.
        lacks: what the row needs and is not to be had here; where a command cannot run without it, none is run.
    """

    name: str
    shows: str
    commands: tuple[str, ...] = ()
    lacks: str = ""


_REPORT = "eval.report --results results/ --baseline source --output report/"
_LABELS = "labels of the test rows, which are SloBench's: `val` is scored, the test rows are asked"
_COMET, _BLEURT = "weights of COMET-22", "weights of BLEURT-20"


def _harness(models: str, words: str, output: str = "results/") -> str:
    return f"eval.harness --model {models} {words} --data eval_data/ --output {output}"


_GAMS = (
    _harness("source=opt/ adapted=hf/", """--tasks sl_generative --metadata '{"wording": "2024-07"}'"""),
    f"{_REPORT} --copied-rows",
    "eval.slobench --model hf/ --data eval_data/ --wording 2024-07 --output submission/",
)
_FERTILITY = (
    "data_prep.tokenizer_report --tokenizer mistral=mistral/ minerva=minerva/ llama=llama/"
    " --input CX-IT=cx.it.jsonl --input CX-EN=cx.en.jsonl --input WP-IT=wp.it.jsonl --input WP-EN=wp.en.jsonl --output report/"
)
_OF_MISTRAL, _OF_LLAMA = ("random", "mean", "clp", "sava", "lapt"), ("mean", "sava", "lapt")


def _trained(folder: str, methods: Sequence[str], steps: Sequence[int]) -> str:
    return " ".join(f"{folder}/{method}_{step}" for method in methods for step in steps)


# Model -> its folders after the paper's two numbers of steps, and these.
_SAVA = {
    "Mistral": (f"source=mistral/ {_trained('hf', _OF_MISTRAL, (200, 2000))}", "200 2000"),
    "Llama": (f"source=llama/ {_trained('hf_llama', _OF_LLAMA, (300, 3000))}", "300 3000"),
}


def _ita_bench(model: str, language: str) -> tuple[str, ...]:
    models, steps = _SAVA[model]
    return _harness(models, f"--tasks itabench_{language}"), f"{_REPORT} --steps {steps}"


def _losses(*runs: str) -> str:
    return f"eval.figures loss --run {' '.join(f'{run}=work/{run}' for run in runs)} --against tokens --output figure/"


_WAYS = ("lapt", "random", "focus", "mean", "merge", "align")
_LOW_LANGUAGES = ("my", "si", "te")


def _ways(ways: Sequence[str], folder: str = "") -> str:
    return " ".join(["source=llama2/", *(f"{way}=hf{folder}/{way}" for way in ways)])


def _grid(ways: Sequence[str], results: str = "results") -> str:
    return "--grid " + " ".join(f"{way}={results}/{way}" for way in ("source", *ways))


_MT_AND_SUM = "--tasks mt_zero_shot_from_english summarisation --rouge-tokenizer mt5/"
_MINE = f"{_ways(('lapt', 'align'))}"
_ENCODERS = "random=hf_random/ ofa_0=hf_0/ ofa_10000=hf_10000/ ofa=hf/"
_ENCODER_TASKS = (
    "eval.prepare wikiann ud_pos taxi1500 --source downloads/ --output eval_data/",
    f"eval.finetune --model {_ENCODERS} --data eval_data/ --output results/",
    f"eval.retrieval --model {_ENCODERS} --tatoeba tatoeba/ --results results/ --output tatoeba_retrieval/",
    f"eval.retrieval --model {_ENCODERS} --verses slv=slv.txt ceb=ceb.txt --english eng.txt --results results/ --output bible_retrieval/",
)
_FIVE = "--tasks 'bible_*' 'tatoeba_*' 'taxi1500_*' 'ner_*' 'pos_*'"
_ACROSS = (*_ENCODER_TASKS, "eval.report --results results/ --baseline random --output report/")
_TRAIN = "recipes.train --recipe low_resource/llama2"

ITEMS = (
    Item("gams T1", "tokens of each corpus by OPT's and the new tokenizer", ("data_prep.tokenizer_report --tokenizer OPT=opt/ Slovene=tokenizer/ --corpora corpora.yaml --output report/",)),
    Item("gams T2", "an answer of Falcon 1B", ("eval.generate --model falcon=falcon/ --prompts prompts.jsonl --settings speed --output generated/",)),
    Item("gams T3", "test rows and examples of each task", ("eval.prepare superglue_sl si_nli --source downloads/ --output eval_data/",)),
    *(Item(f"gams T{number}", shows, _GAMS, _LABELS) for number, shows in ((4, "BoolQ, CB and COPA"), (5, "MultiRC, RTE and WSC"), (6, "SI-NLI"))),
    Item("gams T7", "SARI on SENTA by number of examples", (_harness("source=opt/ adapted=hf/", "--tasks sl_simplification"), f"{_REPORT} --copied-rows")),
    Item("gams F1", "words in pieces and lexicon by vocabulary size", ("data_prep.tokenizer_report --tokenizer 40k=tokenizer_40k/ 80k=tokenizer_80k/ --input sl=subtitles.sl.txt --input en=subtitles.en.txt --lexicon sloleks.tsv --output report/",)),
    Item("gams F2", "training and validation loss", ("eval.figures loss --run focus=work/focus random=work/random --against steps --output figure/",)),
    Item("sava T1", "parameters and vocabularies", tuple(f"recipes.plan --recipe sava/{name} --gpu a100-64gb" for name in ("mistral_lapt", "mistral", "llama_lapt", "llama"))),
    Item("sava T2", "fertility", (_FERTILITY,)),
    *(Item(name, f"ITA-Bench in {language}, {model}", _ita_bench(model, code)) for name, language, code, model in (("sava T3", "Italian", "it", "Mistral"), ("sava T4", "Italian", "it", "Llama"), ("sava T10", "English", "en", "Mistral"), ("sava T11", "English", "en", "Llama"))),
    *(
        Item(
            name,
            f"FLORES by COMET and SQuAD-it, {model}",
            (_harness(_SAVA[model][0], "--tasks flores_en_it flores_it_en squad_it"), "eval.comet --results results/ --checkpoint wmt22-comet-da/ --output scored/", f"eval.report --results scored/ --baseline source --output report/ --steps {_SAVA[model][1]}"),
            _COMET,
        )
        for name, model in (("sava T5", "Mistral"), ("sava T6", "Llama"))
    ),
    Item("sava T7", "likeness of embeddings to Minerva's", (f"eval.embeddings --model minerva=minerva/ {_trained('hf', _OF_MISTRAL[:-1], (0, 2000))} --output likeness/", f"eval.embeddings --model minerva=minerva/ {_trained('hf_llama', _OF_LLAMA[:-1], (0, 3000))} --output likeness_llama/")),
    *(Item(f"sava T{number}", f"prompts of {what}", (f"eval.generate --model adapted=hf/sava_2000/ --task {task} --data eval_data/ --settings sava --output generated/",)) for number, what, task in ((8, "translation", "flores_en_it"), (9, "questions", "squad_it"))),
    Item("sava F1", "fertility of two tokenizers", (_FERTILITY,)),
    *(
        Item(name, f"mean of ITA-Bench in {language} over training, {model}", (f"eval.watch --run work/run --output evaluations/ -- --tasks itabench_{code} --data eval_data/", f"eval.figures suite --results evaluations/ --tasks itabench_*_{code} --output figure/"))
        for name, language, code, model in (("sava F2", "Italian", "it", "Mistral"), ("sava F3", "Italian", "it", "Llama"), ("sava F4", "English", "en", "Mistral"), ("sava F5", "English", "en", "Llama"))
    ),
    Item("sava F6", "training loss, Mistral", (_losses(*_OF_MISTRAL),)),
    Item("sava F7", "training loss, Llama", (_losses(*_OF_LLAMA),)),
    Item("sava F8", "likeness across models", (f"eval.embeddings --model {_trained('hf', _OF_MISTRAL, (2000,)).replace(' hf/lapt_2000', '')} --output likeness/",)),
    Item("sava F9", "training loss by the helper's size", (_losses("minerva_350m", "minerva_1b", "minerva_3b"),)),
    Item("sava F10", "training loss by the number of pairs of the map", ("conversion.transfer --source mistral/ --tokenizer minerva/ --method sava-adam --helper minerva_3b/ --num-pairs 2000 --output hf_few/", _losses("pairs_2000", "pairs_all"))),
    Item("low F1", "ways to adapt"),
    Item("low T1", "translation and summaries, Llama 2", (_harness(_ways(_WAYS), _MT_AND_SUM), f"{_REPORT} {_grid(_WAYS)}")),
    Item("low T2", "perplexity, Llama 2", (f"eval.harness --model {_ways(_WAYS)} --text my=heldout.my.txt si=heldout.si.txt te=heldout.te.txt --output results/", _REPORT)),
    Item("low T3", "tokens a second", (f"eval.generate --model {_ways(_WAYS)} --task mt_en_my --data eval_data/ --settings lowres --output generated/", _harness(_ways(_WAYS), "--tasks mt_en_my"), f"{_REPORT} --efficiency generated/")),
    Item("low T4", "ways to train", (f"{_TRAIN}_lapt --output work/lapt", f"{_TRAIN} --output work/lora procedure=lora", f"{_TRAIN} --output work/two_stage procedure=2_stage", *(f"conversion.nemo_to_hf --input work/{way}/checkpoints/step_0000012 --output hf/{way}" for way in ("lapt", "lora", "two_stage")), _harness(_ways(("lapt", "lora", "two_stage")), _MT_AND_SUM), f"{_REPORT} {_grid(('lapt', 'lora', 'two_stage'))}")),
    Item("low T5", "performance and speed, Llama 3 and Gemma 2", (_harness(_MINE, "--tasks mt_en_my sum_my mt_en_si sum_si mt_en_te sum_te --rouge-tokenizer mt5/"), f"eval.generate --model {_MINE} --task mt_en_my --data eval_data/ --settings lowres --output generated_my/", f"{_REPORT} {_grid(('lapt', 'align'))} --efficiency generated_my/")),
    Item("low T6", "settings of training", ("recipes.plan --recipe low_resource/llama2 --gpu a100-80gb procedure=lora",)),
    Item("low T7", "settings of generation", ("eval.generate --model source=llama2/ --task mt_en_my --data eval_data/ --settings lowres-beams --output generated/",)),
    Item("low T8", "prompts", tuple(f"eval.generate --model source=llama2/ --task {task} --data eval_data/ --rouge-tokenizer mt5/ --settings lowres --output generated_{task}/" for task in ("mt_en_my", "sum_my"))),
    Item("low T9", "FOCUS with given word vectors", ("conversion.transfer --source llama2/ --vocabulary expand --new-tokens 100 --text my.txt --method focus-words --vectors cc.my.300.bin --output hf/focus_words", _harness(_ways(("focus", "focus_words")), "--tasks mt_en_my sum_my --rouge-tokenizer mt5/"), f"{_REPORT} {_grid(('focus', 'focus_words'))}")),
    Item("low T10", "a second head with random rows", (f"{_TRAIN} --output work/random objective=two_tokens_random", "conversion.nemo_to_hf --input work/random/checkpoints/step_0000012 --output hf/two_random", _harness(_ways(("align", "two_random")), "--tasks mt_en_my sum_my --rouge-tokenizer mt5/"), f"{_REPORT} {_grid(('align', 'two_random'))}")),
    Item("low T11", "perplexity, Llama 3 and Gemma 2", (f"eval.harness --model {_ways(_WAYS)} --text my=heldout.my.txt si=heldout.si.txt te=heldout.te.txt --output results/", _REPORT)),
    Item("low T12", "ROUGE-L and BLEURT of summaries", (_harness(_MINE, "--tasks summarisation --rouge-tokenizer mt5/"), "eval.bleurt --results results/ --checkpoint bleurt-20/ --output scored/", f"eval.report --results scored/ --baseline source --output report/ {_grid(('lapt', 'align'), 'scored')}"), _BLEURT),
    *(
        Item(name, shows, (_harness("source=llama2/ lapt=hf/lapt n100=hf_sizes/n100 n500=hf_sizes/n500", "--tasks mt_en_my sum_my --rouge-tokenizer mt5/", "llama2_results/"), *(f"eval.generate --model source=llama2/ n100=hf_sizes/n100 n500=hf_sizes/n500 --task {task} --data eval_data/ --rouge-tokenizer mt5/ --settings lowres --output llama2_results/generated_{task}/" for task in ("mt_en_my", "sum_my")), "eval.figures new-tokens --grid Llama2=llama2_results/ --tasks mt_en_* sum_* --output figure/"))
        for name, shows in (("low F2", "scores and speedup by number of new tokens"), ("low F4", "share of new tokens in input and output"))
    ),
    Item("low F3", "tokens of FLORES by language and model", ("data_prep.tokenizer_report --tokenizer llama2=llama2/ gemma2=gemma2/ --input my=heldout.my.txt --parallel eval_data/mt/flores_dev.jsonl.gz --output report/",)),
    Item("ofa F1", "five tasks of each model beside the baselines", (*_ENCODER_TASKS, f"eval.figures profile --results results/ {_FIVE} --output figure/")),
    Item("ofa F2", "steps of the method"),
    Item("ofa T1", "parameters by number of dimensions", tuple(f"recipes.plan --recipe ofa/{kind}{f' model.factorised_size={size}' if size else ''} --gpu a100-40gb" for kind in ("mono", "multi") for size in (100, 200, 400, None))),
    Item("ofa T2", "five tasks, all languages", _ACROSS),
    Item("ofa T3", "languages that gain", _ACROSS),
    Item("ofa T4", "hours and carbon of training", (*_ENCODER_TASKS, "eval.report --results results/ --baseline random --run random=work/random 'ofa, tied, seed 1=work/ofa' --gpu a100-40gb --output report/")),
    Item("ofa T5", "tasks without continued pretraining", _ACROSS),
    Item("ofa T6", "retrieval by language family", _ACROSS),
    Item("ofa F3", "loss and five tasks over training", (*_ENCODER_TASKS, f"eval.figures suite --run 'ofa, tied, seed 1=work/ofa' --results results/ {_FIVE} --output figure/")),
)  # fmt: skip


def table(paper: str, outcomes: Mapping[str, Outcome]) -> str:
    """The rows of one paper as Markdown."""
    rows = []
    for item in ITEMS:
        key, place = item.name.split()
        if key == paper:
            commands = "<br>".join(f"`python -m {words}`" for words in item.commands) or "–"
            kind = "Table" if place[0] == "T" else "Figure"
            rows.append([f"{kind} {place[1:]}", item.shows, *_state(item, outcomes), commands])
    # Cells as wide as a screen are not filled up with spaces.
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (["", "shows", "state", "seconds", "commands"], ["---"] * 5, *rows))


def _state(item: Item, outcomes: Mapping[str, Outcome]) -> tuple[str, str]:
    if not item.commands:
        return DRAWING, "–"
    outcome = outcomes.get(item.name)
    return ("not run", "–") if outcome is None else (outcome.text(), f"{outcome.seconds:.0f}")


def summary(outcomes: Mapping[str, Outcome]) -> str:
    """How many rows are in which state, and what the states mean."""
    counts = Counter(
        DRAWING if not item.commands else outcomes[item.name].state for item in ITEMS if not item.commands or item.name in outcomes
    )
    description = ", ".join(f"{counts[state]} {state}" for state in STATES)
    return "\n".join([f"{len(ITEMS)} tables and figures: {description}.", "", *(f"- {state}: {what}" for state, what in STATES.items())])


def listing(outcomes: Mapping[str, Outcome]) -> str:
    """All tables, for the docs."""
    return "\n\n".join([summary(outcomes), *(f"## {title}\n\n{table(paper, outcomes)}" for paper, title in PAPERS.items())])


def _commit() -> str:
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=DOCS.parent, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the rows, or run them."""
    parser = command.parser(__doc__, prog="benchmarks.papers", example="python -m benchmarks.papers --run 'gams T1' 'sava T3'")
    parser.add_argument("paper", nargs="?", choices=tuple(PAPERS), help="paper to list (default: all)")
    parser.add_argument(
        "--run", nargs="*", metavar="NAME", help="run these rows, such as 'gams T1' (default: all rows, or all of the paper)"
    )
    parser.add_argument("--keep", type=Path, metavar="DIR", help="new folder to keep the rows' outputs in (default: outputs are removed)")
    parser.add_argument("--write", action="store_true", help="write the list with its states into docs/results/papers.md")
    arguments: argparse.Namespace = parser.parse_args(argv)
    items = [item for item in ITEMS if arguments.paper in (None, item.name.split()[0])]
    if unknown := set(arguments.run or ()) - {item.name for item in items}:
        raise ValueError(f"there is no row {min(unknown)}; there are {', '.join(item.name for item in items)}")
    if arguments.run is None:
        print(listing({}) if arguments.paper is None else table(arguments.paper, {}))
        return command.DONE
    chosen = [item for item in items if item.commands and (not arguments.run or item.name in arguments.run)]
    outcomes = {}
    for name, outcome in run_rows(chosen, arguments.keep):
        outcomes[name] = outcome
        print(f"{name:9} {outcome.seconds:7.1f} s  {outcome.text()}", flush=True)
    print(f"\n{summary(outcomes)}")
    if arguments.write:
        before, rest = DOCS.read_text(encoding="utf-8").split(BEGIN)
        after = rest.split(END)[1]
        DOCS.write_text(f"{before}{BEGIN}\nAt commit {_commit()}.\n\n{listing(outcomes)}\n{END}{after}", encoding="utf-8")
    return command.DONE if all(outcome.state != FAILS for outcome in outcomes.values()) else command.WRONG


if __name__ == "__main__":
    command.run(main)
