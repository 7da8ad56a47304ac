"""Add a chat template to an exported tokenizer, and make it read special tokens where the template writes them."""

from __future__ import annotations

from pathlib import Path

from common.plain_files import read_json, read_text, write_json

TEMPLATE_NAME = "chat_template.jinja"
_CONFIG_NAME = "tokenizer_config.json"
_TURNS = [{"role": "user", "content": "a b"}, {"role": "assistant", "content": "c d"}]


def add_chat_template(folder: Path, template: Path) -> None:
    """Give the tokenizer of an export a chat template.

    Tokenizers of `data_prep.train_tokenizer` take text that spells a special token as text, which keeps corpora from ending documents.  A
    template is such text, so from here on it counts.  Nothing else about the tokenizer changes.

    Args:
        folder: of the export, before it is complete.
        template: Jinja, as transformers' `chat_template`; it sees `messages`, `bos_token`, `eos_token` and `add_generation_prompt`.

    Raises:
        ValueError: if there is no tokenizer or no template, if it cannot be rendered, or if no end of text follows an answer.
    """
    from transformers import AutoTokenizer

    if not (folder / _CONFIG_NAME).is_file():
        raise ValueError(f"the checkpoint has no {_CONFIG_NAME}, to which a chat template belongs; export it without --chat-template")
    text = read_text(template)
    config = {key: value for key, value in read_json(folder / _CONFIG_NAME).items() if key != "chat_template"}
    write_json(folder / _CONFIG_NAME, {**config, "split_special_tokens": False})
    (folder / TEMPLATE_NAME).write_text(text, encoding="utf-8")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    try:
        ids, asked = (
            tokenizer.apply_chat_template(turns, add_generation_prompt=more, return_dict=False)  # of transformers 5 it would be one
            for turns, more in ((_TURNS, False), (_TURNS[:1], True))
        )
    except Exception as error:  # Jinja's own and whatever a template raises
        raise ValueError(f"the chat template {template} cannot be rendered: {error}") from error
    if ids[: len(asked)] != asked:
        raise ValueError(
            f"by the chat template {template} a conversation does not begin with its prompt, so the answer cannot be separated from it"
        )
    if tokenizer.eos_token_id not in ids[len(asked) :]:
        raise ValueError(
            f"by the chat template {template} no end of text ({tokenizer.eos_token}) follows an answer, so that a model tuned with it would not"
            " learn to stop; add eos_token after the assistant's messages"
        )
