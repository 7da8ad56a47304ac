"""All tables and figures of the four papers: the commands that fill each, whether they ran and on what, and what is missing.

Without arguments the list, which is that of docs/papers.md.  A command stands for what one would type with data and models of one's own.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from common import command
from common.tables import markdown_table

PAPERS = {"gams": "GaMS", "sava": "SAVA", "low": "low-resource", "ofa": "OFA"}
WORKS, PARTLY, NOT, DRAWING = "works", "partly", "not at all", "a drawing"
STATES = {
    WORKS: "comes out of the commands in the paper's form",
    PARTLY: "some of its rows, columns or data do not",
    NOT: "nothing here makes it",
    DRAWING: "illustrates the method; there is nothing to measure",
}


@dataclass(frozen=True)
class Item:
    """One table or figure.

    Attributes:
        name: `gams T4`, `sava F2` ...
        shows: what it shows.
        state: one of `STATES`.
        commands: what fills it, one after the other, without `python -m`.
        shown_by: the test that ran this on tiny models or small data; empty where none did.
        missing: of what is not whole, what is missing; of what works, what the test did not have.
    """

    name: str
    shows: str
    state: str
    commands: tuple[str, ...] = ()
    shown_by: str = ""
    missing: str = ""


_REPORT = "eval.report --results results/ --baseline source --output report/"
_FERTILITY = (
    "data_prep.tokenizer_report --tokenizer mistral=mistral/ minerva=minerva/ --input cx=culturax.jsonl wp=wikipedia.jsonl --output report/"
)


def _harness(words: str) -> str:
    return f"eval.harness --model source=opt/ adapted=hf/ {words} --data eval_data/ --output results/"


_SUITES = "tests/eval/test_all_suites.py::test_all_suites_from_real_rows_to_the_report"
_PUBLISHED = "tests/eval/reporting/test_papers_tables.py::test_published_files_become_the_papers_tables_and_figures"
_LOSSES = "tests/eval/test_figures.py::test_losses_of_runs"
_LOW = "tests/eval/reporting/test_low_resource_tables.py::test_published_files_become_the_low_resource_papers_tables_and_figures"
_LOW_SMALL = "tiny models of two sources, adapted for two languages and trained in the test; files in the published form, small"
_PREPARED = "tests/eval/test_prepare.py::test_every_task_of_the_papers_reads_what_is_prepared"
_SPEED = "tests/eval/reporting/test_report_generation.py::test_speed_stands_beside_accuracy_and_fertility"
_RECIPES = "tests/recipes/rules/test_all_recipes.py"
_GAMS = (
    _harness("""--tasks sl_generative --metadata '{"wording": "2024-07"}'"""),
    f"{_REPORT} --copied-rows",
    "eval.slobench --model hf/ --data eval_data/ --wording 2024-07 --output submission/",
)
_NO_LABELS = (
    "tiny models; labels of the paper's test rows are SloBench's alone: `val` is scored here, the test rows are asked and sent there"
)
_SAVA_REPORT = f"{_REPORT} --steps 200 2000"
_ITA = (_harness("--tasks itabench_it"), _SAVA_REPORT)
_SMALL = "tiny models; files in the published form, small"
_ENCODER_TASKS = (
    "eval.prepare wikiann ud_pos taxi1500 --source downloads/ --output eval_data/",
    "eval.finetune --model random=hf_random/ ofa=hf/ --data eval_data/ --output results/",
    "eval.retrieval --model random=hf_random/ ofa=hf/ --tatoeba tatoeba/ --results results/ --output tatoeba_retrieval/",
    "eval.retrieval --model random=hf_random/ ofa=hf/ --verses slv=slv.txt ceb=ceb.txt --english eng.txt --results results/ --output bible_retrieval/",
    _REPORT.replace("source", "random"),
)
_ACROSS = "tests/eval/reporting/test_across_languages.py::test_head_tail_and_all"
_NOT_THEIR_DATA = "the paper's sets and models were never at hand: real rows of five languages, tiny encoders, published forms in small"

ITEMS = (
    Item(
        "gams T1",
        "tokens of each corpus by OPT's and the new tokenizer",
        WORKS,
        ("data_prep.tokenizer_report --tokenizer opt=opt/ new=tokenizer/ --corpora corpora.yaml --output report/",),
        "tests/data_prep/test_tokenizer_report.py::test_command",
        "not on the paper's corpora",
    ),
    Item("gams T2", "an answer of Falcon 1B", WORKS, ("eval.generate --model falcon=falcon/ --prompts prompts.jsonl --settings speed --output generated/",), "tests/eval/test_generate.py::test_a_plain_folder_of_another_family_is_compared_too", "a tiny Falcon; the paper's was never at hand"),
    Item(
        "gams T3",
        "test rows and examples of each task",
        WORKS,
        ("eval.prepare superglue_sl si_nli --source downloads/ --output eval_data/",),
        "tests/eval/test_prepare.py::test_test_rows_with_labels_are_the_papers_test_set",
        "in the test files in small; by hand all seven counts on the public files of the paper's framework",
    ),
    Item("gams T4", "BoolQ, CB and COPA", WORKS, _GAMS, _PUBLISHED, _NO_LABELS),
    Item("gams T5", "MultiRC, RTE and WSC", WORKS, _GAMS, _PUBLISHED, _NO_LABELS),
    Item("gams T6", "SI-NLI", WORKS, _GAMS, _PUBLISHED, _NO_LABELS),
    Item(
        "gams T7",
        "SARI on SENTA by number of examples",
        WORKS,
        (_harness("--tasks sl_simplification"), f"{_REPORT} --copied-rows"),
        _PUBLISHED,
        "tiny models; SENTA's pairs are not passed on, its form is from its authors' code",
    ),
    Item(
        "gams F1",
        "words, pieces and lexicon by vocabulary size",
        WORKS,
        ("data_prep.tokenizer_report --tokenizer 40k=tokenizer_40k/ 80k=tokenizer_80k/ --input sl=subtitles.sl.txt en=subtitles.en.txt --lexicon sloleks.tsv --output report/",),
        "tests/data_prep/test_tokenizer_report.py::test_command",
        "panels of the first text, tables of all; not on the paper's subtitles",
    ),
    Item("gams F2", "training and validation loss", WORKS, ("eval.figures loss --run focus=work/focus random=work/random --against steps --output figure/",), _LOSSES, ""),
    Item(
        "sava T1",
        "parameters and vocabularies",
        WORKS,
        ("recipes.plan --recipe sava/mistral --gpu a100-64gb", "recipes.plan --recipe sava/llama --gpu a100-64gb"),
        "tests/recipes/planner/test_planner.py::test_parameters_by_name_are_those_of_the_model",
        "",
    ),
    Item("sava T2", "fertility", WORKS, (_FERTILITY,), "tests/data_prep/test_tokenizer_report.py::test_command", "not on CulturaX"),
    Item("sava T3", "ITA-Bench in Italian, Mistral", WORKS, _ITA, _PUBLISHED, _SMALL),
    Item("sava T4", "ITA-Bench in Italian, Llama", WORKS, _ITA, _PUBLISHED, _SMALL),
    *(
        Item(
            name,
            f"FLORES by COMET and SQuAD-it, {model}",
            WORKS,
            (_harness("--tasks flores_en_it flores_it_en squad_it"), "eval.comet --results results/ --checkpoint wmt22-comet-da/ --output scored/", "eval.report --results scored/ --baseline source --output report/ --steps 200 2000"),
            _PUBLISHED,
            "tiny models; COMET's weights were never at hand: random ones of its architecture in `tests/eval/test_comet.py`",
        )
        for name, model in (("sava T5", "Mistral"), ("sava T6", "Llama"))
    ),
    Item(
        "sava T7",
        "likeness of embeddings to Minerva's",
        WORKS,
        ("eval.embeddings --model minerva=minerva/ before=hf_0/ after=hf/ --output likeness/",),
        "tests/eval/test_embeddings.py::test_the_command_on_models",
        "",
    ),
    Item("sava T8", "prompts of translation", WORKS, ("eval.generate --model adapted=hf/ --task flores_en_it --data eval_data/ --settings sava --output generated/",), "tests/eval/protocols/test_paper_tasks.py::test_flores_few_shot", ""),
    Item("sava T9", "prompts of questions", WORKS, ("eval.generate --model adapted=hf/ --task squad_it --data eval_data/ --settings sava --output generated/",), "tests/eval/protocols/test_paper_tasks.py::test_squad_it", ""),
    Item("sava T10", "ITA-Bench in English, Mistral", WORKS, (_harness("--tasks itabench_en"), _SAVA_REPORT), _PUBLISHED, _SMALL),
    Item("sava T11", "ITA-Bench in English, Llama", WORKS, (_harness("--tasks itabench_en"), _SAVA_REPORT), _PUBLISHED, _SMALL),
    Item("sava F1", "fertility of two tokenizers", WORKS, (_FERTILITY,), "tests/data_prep/test_tokenizer_report.py::test_command", "not on CulturaX"),
    *(
        Item(
            name,
            f"mean of ITA-Bench in {language} over training, {model}",
            WORKS,
            (f"eval.watch --run work/run --output evaluations/ -- --tasks itabench_{code} --data eval_data/", f"eval.figures suite --results evaluations/ --tasks itabench_*_{code} --output figure/"),
            _PUBLISHED,
            _SMALL,
        )
        for name, language, code, model in (
            ("sava F2", "Italian", "it", "Mistral"),
            ("sava F3", "Italian", "it", "Llama"),
            ("sava F4", "English", "en", "Mistral"),
            ("sava F5", "English", "en", "Llama"),
        )
    ),
    *(
        Item(name, f"training loss, {model}", WORKS, ("eval.figures loss --run sava=work/sava mean=work/mean lapt=work/lapt --against tokens --output figure/",), _LOSSES, "")
        for name, model in (("sava F6", "Mistral"), ("sava F7", "Llama"))
    ),
    Item("sava F8", "likeness across models", WORKS, ("eval.embeddings --model sava=hf_sava/ mean=hf_mean/ clp=hf_clp/ --output likeness/",), "tests/eval/test_embeddings.py::test_the_command_on_models", ""),
    Item("sava F9", "training loss of ways to initialise", WORKS, ("eval.figures loss --run sava=work/sava clp=work/clp random=work/random --output figure/",), _LOSSES, ""),
    Item(
        "sava F10",
        "training loss by the number of pairs of the map",
        WORKS,
        ("conversion.transfer --source mistral/ --tokenizer minerva/ --method sava-adam --helper minerva_3b/ --num-pairs 2000 --output hf_few/", "eval.figures loss --run all=work/all few=work/few --output figure/"),
        "tests/conversion/embeddings/test_embeddings_references.py::test_sava_s_map_on_some_pairs",
        "small vocabularies",
    ),
    Item("low F1", "ways to adapt", DRAWING),
    Item(
        "low T1",
        "translation and summaries, Llama 2",
        WORKS,
        (_harness("--tasks mt_zero_shot_from_english summarisation --rouge-tokenizer mt5/"), _REPORT),
        _SUITES,
        "tiny models; real sentences that stand for FLORES",
    ),
    Item("low T2", "perplexity, Llama 2", WORKS, (_harness("--text my=heldout.my.txt"), _REPORT), "tests/eval/test_harness.py", "tiny models"),
    Item("low T3", "tokens a second", WORKS, ("eval.generate --model source=llama2/ align=hf/ --task mt_en_my --data eval_data/ --settings lowres --output generated/", f"{_REPORT} --efficiency generated/"), _SPEED, "CPU; made figures"),
    Item(
        "low T4",
        "ways to train",
        WORKS,
        ("recipes.train --recipe low_resource/llama2_lapt --output work/lapt", "recipes.train --recipe low_resource/llama2 --output work/lora procedure=lora", "recipes.train --recipe low_resource/llama2 --output work/two_stage procedure=2_stage", _harness("--tasks mt_zero_shot_from_english summarisation --rouge-tokenizer mt5/"), f"{_REPORT} --grid source=results/source lapt=results/lapt lora=results/lora two_stage=results/two_stage"),
        _LOW,
        f"{_LOW_SMALL}, in three ways that are not these recipes, which are tested elsewhere; chrF times 100",
    ),
    Item("low T5", "performance and speed, Llama 3 and Gemma 2", WORKS, ("recipes.plan --recipe low_resource/llama3 --gpu a100-80gb", _harness("--tasks mt_en_my sum_my mt_en_si sum_si mt_en_te sum_te --rouge-tokenizer mt5/"), "eval.generate --model source=llama3/ lapt=hf_lapt/ align=hf/ --task mt_en_my --data eval_data/ --settings lowres --output generated_my/", f"{_REPORT} --grid source=results/source lapt=results/lapt align=results/align --efficiency generated_my/"), _LOW, f"{_LOW_SMALL}, Llama and OPT in place of Llama 3 and Gemma 2; speedups in bytes a second on a CPU, a report for each task"),
    Item("low T6", "settings of training", WORKS, ("recipes.plan --recipe low_resource/llama2 --gpu a100-80gb",), _RECIPES, ""),
    Item("low T7", "settings of generation", WORKS, ("eval.generate --model source=llama2/ --task mt_en_my --data eval_data/ --settings lowres-beams --output generated/",), "tests/eval/protocols/test_beams.py", "five beams with transformers only"),
    Item("low T8", "prompts", WORKS, ("eval.generate --model source=llama2/ --task sum_my --data eval_data/ --settings lowres --output generated/",), _PREPARED, ""),
    Item("low T9", "FOCUS with given word vectors", WORKS, ("conversion.transfer --source llama2/ --vocabulary expand --new-tokens 100 --text my.txt --method focus-words --vectors cc.my.300.bin --output hf/",), "tests/conversion/embeddings/test_embeddings_references.py::test_method_equals_plain_code_on_random_vocabularies", "made word vectors"),
    Item("low T10", "a second head with random rows", WORKS, ("recipes.train --recipe low_resource/llama2 --output work/random objective=two_tokens_random",), "tests/nemo_patches/test_engine_model.py::test_two_tokens_are_predicted_in_training_alone", "tiny models; no model of the paper was trained"),
    Item("low T11", "perplexity, Llama 3 and Gemma 2", WORKS, (_harness("--text my=heldout.my.txt si=heldout.si.txt te=heldout.te.txt"), _REPORT), "tests/eval/test_harness.py", "tiny models"),
    Item(
        "low T12",
        "ROUGE-L and BLEURT of summaries",
        WORKS,
        (_harness("--tasks summarisation --rouge-tokenizer mt5/"), "eval.bleurt --results results/ --checkpoint bleurt-20/ --output scored/", "eval.report --results scored/ --output report/ --grid source=scored/source lapt=scored/lapt align=scored/align"),
        _LOW,
        f"{_LOW_SMALL}; BLEURT times 100; its weights were never at hand: letters in common stand for it here, random ones of its architecture in `tests/eval/test_bleurt.py`",
    ),
    Item("low F2", "scores and speedup by number of new tokens", WORKS, ("eval.figures new-tokens --grid llama2=llama2/ llama3=llama3/ --tasks mt_en_* sum_* --output figure/",), _LOW, _LOW_SMALL),
    Item(
        "low F3",
        "tokens of FLORES by language and model",
        WORKS,
        ("data_prep.tokenizer_report --tokenizer llama2=llama2/ gemma2=gemma2/ --input en=heldout.en.txt --parallel eval_data/mt/flores_dev.jsonl.gz --output report/",),
        _LOW,
        "tiny tokenizers; files in the published form, small; bars as counted: `tests/data_prep/test_tokenizer_report.py`",
    ),
    Item("low F4", "share of new tokens in input and output", WORKS, ("eval.generate --model source=llama2/ n500=hf_500/ n1000=hf_1000/ --task mt_en_my --data eval_data/ --settings lowres --output llama2/generated_my/", "eval.figures new-tokens --grid llama2=llama2/ llama3=llama3/ --tasks mt_en_* sum_* --output figure/"), _LOW, _LOW_SMALL),
    Item(
        "ofa F1",
        "five tasks of each model beside the baselines",
        WORKS,
        ("eval.figures profile --results results/ --tasks 'bible_*' 'tatoeba_*' 'taxi1500_*' 'ner_*' 'pos_*' --output figure/",),
        "tests/eval/reporting/test_across_languages.py::test_five_tasks_side_by_side",
        "on made results; the paper's text at hand says what the figure shows, the picture itself was not seen",
    ),
    Item("ofa F2", "steps of the method", DRAWING),
    Item("ofa T1", "parameters by number of dimensions", WORKS, ("recipes.plan --recipe ofa/mono model.factorised_size=200 --gpu a100-40gb", "recipes.plan --recipe ofa/multi --gpu a100-40gb"), "tests/recipes/rules/test_all_recipes.py::test_parameters_of_ofas_encoders"),
    Item("ofa T2", "five tasks, all languages", WORKS, _ENCODER_TASKS, _ACROSS, _NOT_THEIR_DATA),
    Item("ofa T3", "languages that gain", WORKS, _ENCODER_TASKS, "tests/eval/reporting/test_across_languages.py::test_languages_that_gain", _NOT_THEIR_DATA),
    Item(
        "ofa T4",
        "hours and carbon of training",
        WORKS,
        (
            *_ENCODER_TASKS[:-1],
            _ENCODER_TASKS[-1].replace("--output", "--run 'random, seed 1=work/random' 'ofa, seed 1=work/ofa' --gpu a100-40gb --output"),
            "recipes.plan --recipe ofa/mono model.factorised_size=100 --gpu a100-40gb",
        ),
        "tests/recipes/training/test_masked_runs.py::test_factors_of_an_encoder",
        "a tiny run on two processors, and made results; the last command plans what was not run",
    ),
    Item("ofa T5", "tasks without continued pretraining", WORKS, _ENCODER_TASKS, "tests/eval/reporting/test_across_languages.py::test_families_and_before_and_after", _NOT_THEIR_DATA),
    Item("ofa T6", "retrieval by language family", WORKS, _ENCODER_TASKS, "tests/eval/reporting/test_across_languages.py::test_families_and_before_and_after", _NOT_THEIR_DATA),
    Item(
        "ofa F3",
        "loss and five tasks over training",
        WORKS,
        ("eval.figures suite --run full=work/full latent_100=work/latent_100 --results results/ --tasks 'bible_*' 'tatoeba_*' 'taxi1500_*' 'ner_*' 'pos_*' --output figure/",),
        "tests/eval/reporting/test_across_languages.py::test_loss_and_tasks_over_training",
        "on made results; " + _NOT_THEIR_DATA,
    ),
)  # fmt: skip


def table(paper: str) -> str:
    """The rows of one paper as Markdown."""
    rows = []
    for item in ITEMS:
        key, place = item.name.split()
        if key == paper:
            commands = "<br>".join(f"`python -m {words}`" for words in item.commands) or "–"
            ran = f"`{item.shown_by}`" if item.shown_by else "–"
            kind = "Table" if place[0] == "T" else "Figure"
            rows.append([f"{kind} {place[1:]}", item.shows, item.state, commands, ran, item.missing or "–"])
    return markdown_table(["", "shows", "state", "commands", "ran in", "missing, or not shown"], rows, text_columns=6)


def listing() -> str:
    """All tables, with how many are in which state."""
    counts = Counter(item.state for item in ITEMS)
    told = ", ".join(f"{counts[state]} {state}" for state in STATES)
    meaning = "\n".join(f"- {state}: {what}" for state, what in STATES.items())
    parts = [f"{len(ITEMS)} tables and figures: {told}.", meaning]
    parts += [f"## {title}\n\n{table(paper)}" for paper, title in PAPERS.items()]
    return "\n\n".join(parts)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the list, or one paper's part of it."""
    parser = command.parser(__doc__, prog="benchmarks.papers", example="python -m benchmarks.papers sava")
    parser.add_argument("paper", nargs="?", choices=tuple(PAPERS), help="one paper (default: all)")
    arguments: argparse.Namespace = parser.parse_args(argv)
    print(listing() if arguments.paper is None else table(arguments.paper))
    return command.DONE


if __name__ == "__main__":
    command.run(main)
