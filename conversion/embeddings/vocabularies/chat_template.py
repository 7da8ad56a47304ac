"""The source's chat template: adapted to a tokenizer with another vocabulary, and what it writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from data_prep.tokenizers.files import CHAT_TEMPLATES

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from data_prep.tokenizers.plain_tokenizer import AnyTokenizer


_TURNS = [{"role": role, "content": ""} for role in ("system", "user", "assistant")]


def rendered_chats(tokenizer: PreTrainedTokenizerFast) -> tuple[list[str], tuple[str, ...]]:
    """What the chat templates themselves write of a conversation, and sentences about those that cannot be rendered."""
    found = tokenizer.chat_template or {}
    chats: list[str] = []
    warnings: list[str] = []
    for name, template in (found if isinstance(found, dict) else {"default": found}).items():
        before = len(chats)
        for turns in (_TURNS, _TURNS[1:]):  # without a system prompt many have one of their own, and some refuse one
            try:
                chats.append(str(tokenizer.apply_chat_template(turns, chat_template=template, tokenize=False, add_generation_prompt=True)))
            except Exception:  # Jinja's own and whatever a template raises
                continue
        if len(chats) == before:
            warnings.append(f"the chat template {name!r} cannot be rendered, so tokens that it writes may be exchanged; check --show-swap")
    return chats, tuple(warnings)


def carried_templates(source: AnyTokenizer, target: AnyTokenizer) -> tuple[dict[str, bytes], tuple[str, ...]]:
    """Files with the source's chat templates for a target that has none of its own, and sentences about those that are lost.

    A template is carried over where every special token that it spells is one token of the target's too; else a chat would be
    text of pieces that nothing was trained on.
    """
    if not source.chat_template or target.chat_template:
        return {}, ()
    templates = source.chat_template if isinstance(source.chat_template, dict) else {"default": source.chat_template}
    known = target.get_vocab()
    specials = [str(token) for token in source.all_special_tokens]
    specials += [token.content for token in source.added_tokens_decoder.values() if token.content not in specials]
    files, warnings = {}, []
    for name, template in templates.items():
        missing = [token for token in specials if token in template and token not in known]
        if missing:
            which = "chat template" if name == "default" else f"chat template {name!r}"
            warnings.append(
                f"the source's {which} is left out, because the new tokenizer has no {', '.join(missing)}; put a chat template of"
                " its own beside the tokenizer, or give it these tokens, and transfer again"
            )
            continue
        file_name = "chat_template.jinja" if name == "default" else f"{CHAT_TEMPLATES}/{name}.jinja"
        files[file_name] = template.encode()
    return files, tuple(warnings)
