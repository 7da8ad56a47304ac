"""What a project file may say: every key with its type, unit, default and meaning."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field

CLEANING = ("none", "light", "standard", "web")
TOKENIZER_KINDS = ("byte-level", "bpe", "unigram")
BEST = "best"
PROCEDURES = ("all", "2x2_ls", "2_stage", "lora")
DEVICES = ("cpu", "gpu")
TINY_SIZE = "tiny"
SIZES = (TINY_SIZE,)


@dataclass(frozen=True)
class Language:
    """One language and its texts."""

    texts: tuple[str, ...] = ()  # files or folders of text: .txt, .jsonl, .parquet, .vert, compressed or not
    corpora: tuple[str, ...] = ()  # published corpora by the names of `data_prep.collect --list`, such as cc100_sl
    heldout: tuple[str, ...] = ()  # one file to measure on, which no stage trains on; without it heldout_share is held out
    heldout_share: float = 0.01  # share of the tokens, by whole documents, that no stage trains on, where no file is given
    sentences: int | None = None  # so many sentences, drawn by the seed, in place of all text
    share: float = 1.0  # part of the training text, in proportion to those of the other new languages


@dataclass(frozen=True)
class Text:
    """What is done to all texts before anything learns from them."""

    clean: str = "standard"  # none: as they are; light: Unicode and white space; standard, web: rules of data_prep.clean
    deduplicate: bool = True  # near-duplicate paragraphs are removed, and what held-out text shares with the rest
    separator: str | None = None  # what ends a document in .txt files: line, blank-line or file; by default a line
    key: str = "text"  # under which .jsonl and .parquet files have the text, held-out ones too
    corpora_dir: str | None = None  # folder of published corpora that were downloaded, as `data_prep.collect --folder`


@dataclass(frozen=True)
class Vocabulary:
    """Which tokens the model gets; one of replace, expand, swap and keep."""

    replace: int | None = None  # tokens of a new tokenizer, of the new languages and the source's, in place of the source's
    expand: int | None = None  # tokens of the new languages that are added to the source's, usually 500 to 5,000
    swap: int | None = None  # tokens of the new languages in place of as many that the texts use least, under their ids
    swap_scripts: tuple[str, ...] = ()  # of swap: only tokens of these scripts go, such as Han; by default of any
    keep: bool = False  # the source's tokens as they are
    tokenizer: str | None = None  # folder of a tokenizer that is there already, to replace the source's
    languages: tuple[str, ...] = ()  # whose texts a new tokenizer learns from; by default all
    kind: str = "byte-level"  # of a new tokenizer: byte-level, bpe or unigram
    output_layer: str | None = None  # tied, copied, transferred or random (conversion.transfer --output-layer); by default as the source
    methods: tuple[str, ...] = ()  # in place of transfer.methods for this vocabulary


@dataclass(frozen=True)
class Transfer:
    """How the rows of new tokens are made."""

    methods: tuple[str, ...] = ("best",)  # of conversion.transfer, each trained apart; best: the one that conversion.transfer_compare finds
    options: str = ""  # more words for conversion.transfer, such as --helper FOLDER or --vectors FILE
    candidates: tuple[str, ...] = ("mean", "merge", "align", "focus")  # methods among which best is found

    @property
    def words(self) -> list[str]:
        """The options, quoted as for a shell."""
        return shlex.split(self.options)


@dataclass(frozen=True)
class Training:
    """Continued pretraining, the same for every vocabulary."""

    recipe: str = "language"  # a bundled recipe, see `recipes.plan --list`, or your own YAML file
    tokens: int | None = None  # budget of each training; by default as the recipe says
    steps: int | None = None  # the budget in optimizer steps instead
    replay: float | None = None  # share of the samples that is text of the source's language; by default 0.1 where there is such text
    procedure: str | None = None  # all, 2x2_ls, 2_stage or lora: which parameters learn; by default as the recipe says
    learning_rate: float | None = None  # the highest; by default as the recipe says
    sequence_length: int | None = None  # tokens of a sample; by default as the recipe says
    batch: int | None = None  # samples of a step over all processes; by default as the recipe says
    checkpoints: int = 2  # how many are exported and measured on the way, the last among them
    overrides: tuple[str, ...] = ()  # more key=value for the recipe
    lapt: bool = True  # train the source's own vocabulary alike, to which every gain is compared (LAPT)
    lapt_recipe: str | None = None  # recipe of that training where a paper has another one; by default the same


@dataclass(frozen=True)
class Evaluation:
    """What all models are measured on."""

    texts: dict[str, str] = field(default_factory=dict)  # more held-out texts, NAME: FILE, beside those of the languages
    tasks: tuple[str, ...] = ()  # tasks of lm-eval and of eval/tasks, such as completion_sl
    data: str | None = None  # folder of evaluation data that some tasks read, the output of eval.prepare
    options: str = ""  # more words for eval.harness, such as --limit 100
    prompts: str | None = None  # JSON Lines with `prompt`, which source and trained models continue
    new_tokens: int = 24  # tokens of a continuation
    verify: bool = True  # compare the last export of one vocabulary with its checkpoint, logit by logit


@dataclass(frozen=True)
class Machine:
    """Where it runs."""

    work_dir: str | None = None  # folder for all outputs; by default NAME_output beside the file
    processes: int | None = None  # of a training: GPUs, or processes that share the cores; by default as the recipe says
    device: str = "cpu"  # cpu or gpu
    memory_gib: int | None = None  # of one process of a training, or of another stage; by default all
    hours: float = 1.0  # limit of one job on a cluster; longer trainings are a chain of jobs
    links: int = 4  # jobs that such a chain has at most
    keep: bool = False  # keep the checkpoints that nothing needs any more


@dataclass(frozen=True)
class Project:
    """One piece of work: languages for a model."""

    source: str  # the model: a folder, a name of the Hugging Face hub, a GGUF file, smollm2, or tiny (made here)
    languages: dict[str, Language]  # code: its texts; a file or a list of files for short
    name: str = ""  # for titles and file names; by default the file's name
    source_language: str = "en"  # which of the languages the source knows already
    text: Text = field(default_factory=Text)
    vocabulary: dict[str, Vocabulary] = field(default_factory=dict)  # what it is, or several as NAME: what; by default 2,000 tokens more
    transfer: Transfer = field(default_factory=Transfer)
    training: Training = field(default_factory=Training)
    evaluation: Evaluation = field(default_factory=Evaluation)
    title: str | None = None  # heading of the report
    machine: Machine = field(default_factory=Machine)
    seed: int = 42  # of the transfer and of the order of the data
    size: str | None = None  # tiny: a tiny model, the demo's text and a few steps in place of all, to see it run
    tiny_family: str = "opt"  # family of that tiny model, such as llama
