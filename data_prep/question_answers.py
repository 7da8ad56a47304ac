"""Tokenize question-answer pairs for supervised fine-tuning with loss on the answers only: JSON lines -> Megatron's indexed format.

Each pair becomes two consecutive documents: the prompt made of the question, after the beginning-of-text token if --bos or the tokenizer
adds one; and the answer with the end-of-text token.  Training (`recipes.train`) reads a pair as one sample and computes the loss on the answer.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from common import command
from common.artifacts import DigestingWriter, Manifest, digest_file, staged_directory, write_manifest
from common.options import add_option
from data_prep.megatron.index import PREFIX, QA_STAGE, index_parts, stored_ids, token_dtype
from data_prep.megatron.word_encoder import plain
from data_prep.reading.documents import read_documents, require_text_files
from data_prep.tokenizers.files import load_tokenizer, rows_needed, start_without_torch, tokenizer_digest
from data_prep.tokenizers.frame import add_bos_argument, document_front, front_facts, front_sentence

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

TEMPLATE = "{question}\n"
_FIELD = "{question}"


def question_answers(
    paths: Sequence[Path],
    tokenizer_dir: Path,
    output_dir: Path,
    *,
    template: str = TEMPLATE,
    question_key: str = "question",
    answer_key: str = "answer",
    bos: str = "auto",
    arguments: argparse.Namespace | None = None,
) -> Manifest:
    """Write a data set of pairs and return its manifest.

    Args:
        paths: JSON lines, each with a question and an answer.
        template: of the prompt, with `{question}` in it once.
        bos: what stands in front of each prompt, see `document_front`.

    Raises:
        ValueError: if an input is missing or a line of it lacks one of both, the tokenizer has no end-of-text token, or the template
            has no question.
    """
    if template.count(_FIELD) != 1:
        raise ValueError(f"--template is {template!r}; expected {_FIELD} in it once, for example {TEMPLATE!r}")
    tokenizer = load_tokenizer(tokenizer_dir)
    if tokenizer.eos_token_id is None:
        raise ValueError(f"the tokenizer in {tokenizer_dir} has no end-of-text token (eos_token); answers have to end")
    front = document_front(tokenizer, bos)
    require_text_files(paths)
    lengths: list[int] = []
    text_bytes = 0
    with staged_directory(output_dir) as staging:
        dtype = token_dtype(rows_needed(tokenizer))
        with DigestingWriter(staging / f"{PREFIX}.bin") as stream:
            for text, part in (pair for path in paths for pair in _parts(path, tokenizer, front, template, question_key, answer_key)):
                lengths.append(len(part))
                text_bytes += len(text.encode())
                stream.write(stored_ids(np.array(part, dtype=np.int64), dtype).tobytes())
        with (staging / f"{PREFIX}.idx").open("wb") as index:
            for content in index_parts(np.array(lengths, dtype=np.int32), dtype):
                index.write(content)
        if not lengths:
            raise ValueError(f"there is no question in {', '.join(map(str, paths))}")
        facts = {
            "tokenizer_digest": tokenizer_digest(tokenizer),
            "vocab_size": rows_needed(tokenizer),
            "eos_token_id": tokenizer.eos_token_id,
            **front_facts(tokenizer, front),
            "num_pairs": len(lengths) // 2,
            "num_tokens": sum(lengths),
            "text_bytes": text_bytes,
            "longest_pair": max(a + b for a, b in zip(lengths[::2], lengths[1::2])),
            "template": template,
        }
        return write_manifest(
            staging,
            stage=QA_STAGE,
            facts=facts,
            arguments=vars(arguments) if arguments else None,
            inputs={str(path): digest_file(path) for path in paths},
        )


def _parts(
    path: Path, tokenizer: PreTrainedTokenizerFast, front: Sequence[int], template: str, question_key: str, answer_key: str
) -> Iterator[tuple[str, list[int]]]:
    """Text and token ids: prompt, answer, prompt, answer ..."""
    as_text = plain(copy.deepcopy(tokenizer.backend_tokenizer)).encode  # a template may mean its special tokens, an answer does not
    meant = copy.deepcopy(tokenizer.backend_tokenizer)
    meant.encode_special_tokens = False  # transformers leaves its own setting there
    encode = meant.encode
    for document in read_documents(path, text_key=answer_key):
        question = document.fields.get(question_key)
        if not isinstance(question, str) or not question.strip() or not document.text.strip():
            raise ValueError(
                f"{path}, line {document.line}: expected texts as {question_key!r} and {answer_key!r}, and one of them is missing"
            )
        prompt = template.replace(_FIELD, question)
        yield prompt, [*front, *encode(prompt, add_special_tokens=False).ids]
        yield document.text, [*as_text(document.text, add_special_tokens=False).ids, tokenizer.eos_token_id]


def main(argv: Sequence[str] | None = None) -> int:
    """Make a data set in a new directory."""
    parser = command.parser(__doc__, example=f"python -m {QA_STAGE} --input pairs.jsonl --tokenizer opt-1.3b/ --output work/pairs")
    add_option(parser, "--input FILE", "JSON lines files, also compressed", type=Path, nargs="+", required=True)
    add_option(parser, "--tokenizer DIR", "folder of the tokenizer", type=Path, required=True)
    add_option(parser, "--output DIR", "new directory", type=Path, required=True)
    add_option(parser, "--template", "template of the prompt; \\n is a new line (default: {question}\\n)", TEMPLATE)
    add_option(parser, "--question-key KEY", "key of the question in a line", "question")
    add_option(parser, "--answer-key KEY", "key of the answer in a line", "answer")
    add_bos_argument(parser)
    arguments = parser.parse_args(argv)
    manifest = question_answers(
        arguments.input,
        arguments.tokenizer,
        arguments.output,
        template=arguments.template.replace("\\n", "\n"),
        question_key=arguments.question_key,
        answer_key=arguments.answer_key,
        bos=arguments.bos,
        arguments=arguments,
    )
    facts = manifest.facts
    print(
        f"{arguments.output}: {facts['num_pairs']:,} pairs, {facts['num_tokens']:,} tokens, the longest pair has {facts['longest_pair']};"
        f" {front_sentence(facts)}"
    )
    return command.DONE


if __name__ == "__main__":
    start_without_torch()
    command.run(main)
