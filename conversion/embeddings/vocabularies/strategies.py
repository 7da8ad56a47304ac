"""Strategies for the target vocabulary: another tokenizer, or the source's with tokens added, removed, both or neither."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from common.options import require_values
from conversion.embeddings.options import STRATEGIES, TOKENS_BY, TransferRequest, VocabularyOptions
from conversion.embeddings.vocabularies.chat_template import carried_templates, rendered_chats
from data_prep.mixing.sentences import sample_sentences
from data_prep.reading.corpora import text_files
from data_prep.reading.documents import Documents, batches
from data_prep.tokenizers.auxiliary import train_candidates
from data_prep.tokenizers.continued_bpe import continue_merges
from data_prep.tokenizers.derived import derived_files, load_files, read_description
from data_prep.tokenizers.extension import Candidate, Extension, candidates_of, extend_tokenizer, fits_a_word
from data_prep.tokenizers.files import load_tokenizer, read_tokenizer_files, rows_needed, tokenizer_digest
from data_prep.tokenizers.plain_tokenizer import AnyTokenizer, PlainTokenizer, read_tokenizer
from data_prep.tokenizers.pruning import prune_tokenizer
from data_prep.tokenizers.sentencepiece_file import SENTENCEPIECE_FILES
from data_prep.tokenizers.swapping import chosen_tokens, of_scripts, removable_tokens, under_free_ids, without
from data_prep.tokenizers.token_bytes import respelling_decoder

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_BATCH_CHARACTERS = 1 << 20
_ESCAPES = str.maketrans({"\\": r"\\", "\t": r"\t", "\n": r"\n", "\r": r"\r"})
_NEEDS_TOKENIZER = {"replace": True, "union": True, "prune": False, "keep": False}  # expand takes one or trains one


@dataclass(frozen=True)
class TargetTokenizer:
    """The tokenizer that the new model gets.

    Attributes:
        files: name -> content, written beside the model.
        source_ids: (num_tokens,) int64, the source's id of each token that was taken over, -1 for others; None where none was.
        facts: what was made and measured, for manifest and report.
        left_out: files of the source's tokenizer that could not follow.
        warnings: sentences about what else of it could not.
        swapped: id, old and new token of each that was exchanged.
    """

    tokenizer: AnyTokenizer
    files: Mapping[str, bytes]
    source_ids: np.ndarray | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    swapped: Sequence[tuple[int, str, str]] = ()

    @property
    def swapped_lines(self) -> list[str]:
        """Of each exchanged token: id, tab, old, tab, new; a tab, line break or backslash in a token is written as `\\t`, `\\n`, `\\r`, `\\\\`."""
        return [f"{i}\t{old.translate(_ESCAPES)}\t{new.translate(_ESCAPES)}" for i, old, new in self.swapped]

    @cached_property
    def digest(self) -> str:
        """Identity of what decides its ids."""
        return tokenizer_digest(self.tokenizer)


def require_vocabulary_options(options: VocabularyOptions, *, tokenizer: Path | None, text: Documents | None) -> None:
    """Refuse options that the strategy lacks or would ignore.

    Raises:
        ValueError: naming the option.
    """
    strategy = options.strategy
    if strategy not in STRATEGIES:
        raise ValueError(f"unknown vocabulary {strategy!r}; the known ones are {', '.join(STRATEGIES)}")
    needs_tokenizer = _NEEDS_TOKENIZER.get(strategy)
    if needs_tokenizer and tokenizer is None:
        raise ValueError(f"--vocabulary {strategy} needs the target's tokenizer; give it with --tokenizer DIR")
    if needs_tokenizer is False and tokenizer is not None:
        raise ValueError(f"--vocabulary {strategy} uses the source's own tokenizer; leave out --tokenizer DIR")
    if strategy == "expand" and tokenizer is None and text is None:
        raise ValueError("--vocabulary expand needs text in the target language or a tokenizer; give --text FILE or --tokenizer DIR")
    if strategy == "prune" and text is None:
        raise ValueError("--vocabulary prune needs text that says which tokens are used; give it with --text FILE")
    if strategy == "swap" and text is None:
        raise ValueError("--vocabulary swap needs text in the target language, whose tokens stay; give it with --text FILE")
    learns = strategy in ("expand", "swap")
    if learns and options.num_new_tokens is None:
        raise ValueError(f"--vocabulary {strategy} needs the number of new tokens; give it with --new-tokens N")
    if not learns and options.num_new_tokens is not None:
        raise ValueError(f"--new-tokens is for --vocabulary expand and swap; leave it out with {strategy}")
    if options.tokens_by is not None and (not learns or tokenizer is not None):
        found = f"--vocabulary {strategy}" if not learns else "--tokenizer DIR"
        raise ValueError(f"--tokens-by says how expand and swap learn tokens from --text; leave it out with {found}")
    for flag, given in (("--swap-script", options.swap_scripts), ("--swap-text", options.swap_text)):
        if given and strategy != "swap":
            raise ValueError(f"{flag} is for --vocabulary swap; leave it out with {strategy}")
    if strategy != "prune" and options.min_count != 1:
        raise ValueError(f"--min-count is for --vocabulary prune; leave it out with {strategy}")
    require_values(options)


def read_by(options: VocabularyOptions, tokenizer: Path | None) -> frozenset[str]:
    """Which texts of a request the strategy itself makes use of, `text` and `source_text`."""
    if options.strategy == "prune":
        return frozenset({"text"})
    if options.strategy == "swap" or (options.strategy == "expand" and tokenizer is None):
        return frozenset({"text", "source_text"})
    return frozenset({"source_text"}) if options.strategy in ("expand", "union") else frozenset()


def read_source_tokenizer(options: VocabularyOptions, source: Path) -> AnyTokenizer:
    """The source's tokenizer, of which little is asked where the target's vocabulary is another's.

    Raises:
        ValueError: if it cannot be loaded.
    """
    return read_tokenizer(source) if options.strategy == "replace" else load_tokenizer(source)


def target_tokenizer(request: TransferRequest, source_tokenizer: AnyTokenizer) -> TargetTokenizer:
    """Read or make the tokenizer that the strategy asks for.

    Raises:
        ValueError: if it cannot be made.
    """
    source, tokenizer, strategy = request.source, request.tokenizer, request.vocabulary.strategy
    if strategy == "replace":
        assert tokenizer is not None
        target = read_tokenizer(tokenizer)
        templates, warnings = carried_templates(source_tokenizer, target)
        files = {**read_tokenizer_files(tokenizer), **templates}
        if damaged := _damaged_tokens(target):
            loaded = load_tokenizer(tokenizer)
            description = read_description(tokenizer, loaded)
            decoder = respelling_decoder(description.get("decoder"), damaged)
            if decoder != description.get("decoder"):
                files |= derived_files(tokenizer, loaded, {**description, "decoder": decoder})
                target = load_files(files)
            found = "keep their ids and get bytes in the new model's decoder" if not _damaged_tokens(target) else "stay so"
            warnings += (
                f"{len(damaged)} added tokens of {tokenizer} came back from their ids as another text, the first {damaged[0]!r}: they {found}",
            )
        return TargetTokenizer(target, files, warnings=warnings)
    assert not isinstance(source_tokenizer, PlainTokenizer), "what makes a tokenizer from it asks more"
    if strategy == "keep":
        return TargetTokenizer(source_tokenizer, read_tokenizer_files(source), np.arange(rows_needed(source_tokenizer)))
    if strategy == "prune":
        assert request.text is not None
        return _pruned(source, source_tokenizer, request.text, request.vocabulary.min_count)
    return (_swapped if strategy == "swap" else _extended)(request, source_tokenizer)


def _damaged_tokens(tokenizer: AnyTokenizer) -> list[str]:
    """Added tokens that come back as another text, as a byte-level decoder takes letters such as `é` for bytes."""
    backend = tokenizer.backend_tokenizer
    added = {i: token.content for i, token in backend.get_added_tokens_decoder().items()}
    return [text for i, text in added.items() if text.strip() not in backend.decode([i], skip_special_tokens=False)]


def describe(facts: Mapping[str, Any]) -> list[str]:
    """What was made and measured, in lines for the terminal."""
    lines = []
    if "share_of_text_that_went" in facts:
        lines.append(
            f"{facts['num_new_tokens']:,} tokens exchanged, {facts['num_reached']:,} of the new ones are reachable; the removed ones are"
            f" {100 * facts['share_of_text_that_went']:.3f} % of the texts' tokens"
        )
    elif "num_new_tokens" in facts:
        lines.append(
            f"{facts['num_new_tokens']:,} new tokens, {facts['num_intermediate_tokens']:,} of them intermediate;"
            f" {facts['num_reached']:,} are reachable"
        )
    if "num_unused" in facts:
        lines.append(
            f"dead tokens: {facts['num_new_tokens'] - facts['num_reached']:,} unreachable, {facts['num_unused']:,} not in the text learned from"
        )
    if "num_pruned" in facts:
        lines.append(
            f"{facts['num_pruned']:,} tokens dropped; {facts['num_needed']:,} kept that are not in the text but that others need;"
            f" {facts['num_unreached']:,} are no longer reachable"
        )
    if held_out := facts.get("held_out_text"):
        before, after = held_out["num_tokens_before"], held_out["num_tokens_after"]
        lines.append(
            f"held-out text: {before:,} tokens before, {after:,} after ({100 * (after - before) / max(before, 1):+.1f} %);"
            f" {held_out['num_new_tokens_used']:,} new tokens occur in it"
        )
    if old := facts.get("source_text"):
        lines.append(
            f"source-language text: {100 * old['share_of_lines_changed']:.2f} % of its lines have other ids,"
            f" {100 * old['share_of_bytes_in_new_tokens']:.3f} % of its bytes lie in new tokens"
        )
    return lines


def _extended(request: TransferRequest, source_tokenizer: PreTrainedTokenizerFast) -> TargetTokenizer:
    options, source, tokenizer = request.vocabulary, request.source, request.tokenizer
    description = read_description(source, source_tokenizer)
    sample, held_out = sample_sentences(request.text, options.num_sentences) if request.text is not None else ([], [])
    if options.tokens_by == "continued-bpe":
        assert options.num_new_tokens is not None
        extension = continue_merges(description, sample, options.num_new_tokens)
    else:
        candidates = train_candidates(description, sample) if tokenizer is None else _tokens_of(tokenizer)
        # Every token of a union is wanted; a few that are to serve a text must be possible in one.
        fits = None if options.strategy == "union" else fits_a_word(source_tokenizer.backend_tokenizer)
        extension = extend_tokenizer(description, candidates, options.num_new_tokens, fits=fits)
    files = derived_files(source, source_tokenizer, extension.description)
    extended = load_files(files)
    _require_same_ids(source_tokenizer, extended, num_ids=extension.first_id + len(extension.tokens))
    facts: dict[str, Any] = {
        "num_new_tokens": len(extension.tokens),
        "num_intermediate_tokens": extension.num_intermediate,
        "num_impossible_tokens": extension.num_impossible,
        "num_reached": _num_reached(extended, extension),
    }
    if tokenizer is None:
        facts["tokens_by"] = options.tokens_by or TOKENS_BY[0]
        facts["num_unused"] = _num_unused(extended, sample, extension)
    if held_out:
        facts["held_out_text"] = _use_of(source_tokenizer, extended, held_out, extension.first_id.__le__)
    if request.source_text is not None:
        facts["source_text"] = _change_of(source_tokenizer, extended, request.source_text, extension.first_id.__le__)
    source_ids = np.full(extension.first_id + len(extension.tokens), -1, dtype=np.int64)
    source_ids[: extension.first_id] = np.arange(extension.first_id)
    return TargetTokenizer(extended, files, source_ids, facts, _left_out(source))


def _swapped(request: TransferRequest, source_tokenizer: PreTrainedTokenizerFast) -> TargetTokenizer:
    options, source, text = request.vocabulary, request.source, request.text
    assert options.num_new_tokens is not None and text is not None
    description = read_description(source, source_tokenizer)
    kept = _counts(source_tokenizer, filter(None, (text, request.source_text)))
    removable = removable_tokens(description, wanted=of_scripts(options.swap_scripts) if options.swap_scripts else lambda _: True)
    chats, warnings = rendered_chats(source_tokenizer)
    for token in _counts(source_tokenizer, [chats]):  # a role whose name is cut into other tokens would be unknown to the model
        removable.pop(token, None)
    if options.swap_text:
        given_up = _counts(source_tokenizer, [Documents(text_files(options.swap_text))])
        removable = {token: made for token, made in removable.items() if not kept[token]}
        kept = Counter({token: int(not given_up[token]) for token in removable})
    gone = chosen_tokens(removable, kept, options.num_new_tokens)
    removal = without(description, gone)
    sample, held_out = sample_sentences(text, options.num_sentences)
    if options.tokens_by == "continued-bpe":
        extension = continue_merges(removal.description, sample, options.num_new_tokens, excluded=set(gone))
    else:
        candidates = train_candidates(description, sample) if request.tokenizer is None else _tokens_of(request.tokenizer)
        fits = fits_a_word(source_tokenizer.backend_tokenizer)
        extension = extend_tokenizer(removal.description, candidates, options.num_new_tokens, fits=fits, excluded=set(gone))
    files = derived_files(source, source_tokenizer, under_free_ids(description, removal, extension))
    swapped = load_files(files)
    exchanged = [(i, old, new) for (i, old), new in zip(removal.free.items(), extension.tokens, strict=True)]
    _require_exchanged(source_tokenizer, swapped, exchanged, [*sample, *held_out])
    source_ids = np.arange(rows_needed(source_tokenizer), dtype=np.int64)
    source_ids[list(removal.free)] = -1
    model = swapped.backend_tokenizer.model
    facts: dict[str, Any] = {
        "num_new_tokens": len(exchanged),
        "num_intermediate_tokens": extension.num_intermediate,
        "num_reached": sum([piece.id for piece in model.tokenize(new)] == [i] for i, _, new in exchanged),
        "share_of_text_that_went": sum(kept[token] for token in gone) / max(1, sum(kept.values())) if not options.swap_text else 0.0,
    }
    free = set(removal.free)
    if held_out:
        facts["held_out_text"] = _use_of(source_tokenizer, swapped, held_out, free.__contains__)
    if request.source_text is not None:
        facts["source_text"] = _change_of(source_tokenizer, swapped, request.source_text, free.__contains__)
    return TargetTokenizer(swapped, files, source_ids, facts, _left_out(source), warnings, exchanged)


def _counts(tokenizer: PreTrainedTokenizerFast, texts: Iterable[Iterable[str]]) -> Counter[str]:
    """Token -> how often texts have it."""
    counts: Counter[int] = Counter()
    for text in texts:
        for ids in _encoded(tokenizer, text):
            counts.update(ids)
    spelled = tokenizer.backend_tokenizer.id_to_token
    return Counter({spelled(i): number for i, number in counts.items()})


def _require_exchanged(
    old: PreTrainedTokenizerFast, new: PreTrainedTokenizerFast, exchanged: Sequence[tuple[int, str, str]], texts: Sequence[str]
) -> None:
    """Hold a swapped tokenizer to what it promises.

    Raises:
        ValueError: if another token has moved or is no longer reached, a text that has none of both comes out otherwise, or one does not
            come back as before.
    """
    free = {i for i, _, _ in exchanged}
    before, after = (tokenizer.backend_tokenizer.get_vocab(with_added_tokens=True) for tokenizer in (old, new))
    moved = [token for token, i in before.items() if i not in free and after.get(token) != i]
    lost = _num_unreached(new, {*before.values()} - free) - _num_unreached(old, {*before.values()} - free)
    for batch in batches(texts, _BATCH_CHARACTERS):
        for text, first, second in zip(batch, _encoded(old, batch), _encoded(new, batch), strict=True):
            if first != second and not free & {*first, *second}:
                moved.append(text[:40])
            if new.backend_tokenizer.decode(second) != old.backend_tokenizer.decode(first):
                lost += 1
    if moved or lost > 0 or rows_needed(new) > rows_needed(old):
        raise ValueError(
            f"the tokenizer cannot exchange tokens: {len(moved)} others would have other ids, such as {(moved or ['none'])[0]!r}, and {lost} be"
            " lost; use --vocabulary expand"
        )


def _tokens_of(directory: Path) -> list[Candidate]:
    """The tokens of a tokenizer's folder, from the most to the least wanted."""
    return candidates_of(read_description(directory, load_tokenizer(directory)))


def _pruned(source: Path, source_tokenizer: PreTrainedTokenizerFast, text: Documents, min_count: int) -> TargetTokenizer:
    counts: Counter[int] = Counter()
    for ids in _encoded(source_tokenizer, text):
        counts.update(ids)
    pruning = prune_tokenizer(read_description(source, source_tokenizer), counts, min_count=min_count)
    files = derived_files(source, source_tokenizer, pruning.description, new_ids=pruning.new_ids)
    pruned = load_files(files)
    facts = {
        "num_pruned": rows_needed(source_tokenizer) - len(pruning.old_ids),
        "num_needed": pruning.num_needed,
        "num_unreached": _num_unreached(pruned) - _num_unreached(source_tokenizer, {*pruning.old_ids}),
    }
    return TargetTokenizer(pruned, files, np.array(pruning.old_ids, dtype=np.int64), facts, _left_out(source))


def _left_out(directory: Path) -> tuple[str, ...]:
    return tuple(name for name in SENTENCEPIECE_FILES if (directory / name).is_file())


def _require_same_ids(old: PreTrainedTokenizerFast, new: PreTrainedTokenizerFast, *, num_ids: int) -> None:
    new_ids = new.backend_tokenizer.get_vocab(with_added_tokens=True)
    moved = [token for token, i in old.backend_tokenizer.get_vocab(with_added_tokens=True).items() if new_ids.get(token) != i]
    if moved or rows_needed(new) != num_ids:
        found = (
            f"{len(moved)} of its tokens, the first {moved[0]!r}, would have other ids"
            if moved
            else f"it would have {rows_needed(new)} ids"
        )
        raise ValueError(
            f"the source's tokenizer cannot be extended: with {num_ids} ids wanted, {found};"
            " save it with a current version of transformers and give that"
        )


def _num_reached(tokenizer: PreTrainedTokenizerFast, extension: Extension) -> int:
    """New tokens that the model itself makes of their spelling."""
    tokenize = tokenizer.backend_tokenizer.model.tokenize
    return sum([piece.id for piece in tokenize(token)] == [extension.first_id + place] for place, token in enumerate(extension.tokens))


def _num_unused(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str], extension: Extension) -> int:
    """New tokens that the tokenizer makes nowhere in some texts."""
    used = {i for ids in _encoded(tokenizer, texts) for i in ids}
    return sum(extension.first_id + place not in used for place in range(len(extension.tokens)))


def _num_unreached(tokenizer: PreTrainedTokenizerFast, among: set[int] | None = None) -> int:
    """Tokens that the model does not make of their spelling, of those with the given ids or of all."""
    backend = tokenizer.backend_tokenizer
    added = backend.get_added_tokens_decoder()
    ids = (i for i in backend.get_vocab(with_added_tokens=False).values() if i not in added and (among is None or i in among))
    return sum([piece.id for piece in backend.model.tokenize(backend.id_to_token(i))] != [i] for i in ids)


def _use_of(old: PreTrainedTokenizerFast, new: PreTrainedTokenizerFast, texts: list[str], is_new: Callable[[int], bool]) -> dict[str, int]:
    before, after = list(_encoded(old, texts)), list(_encoded(new, texts))
    return {
        "num_bytes": sum(len(text.encode()) for text in texts),
        "num_tokens_before": sum(map(len, before)),
        "num_tokens_after": sum(map(len, after)),
        "num_new_tokens_used": len({i for ids in after for i in ids if is_new(i)}),
    }


def _change_of(
    old: PreTrainedTokenizerFast, new: PreTrainedTokenizerFast, texts: Iterable[str], is_new: Callable[[int], bool]
) -> dict[str, float]:
    """How much of a text in the source's language is cut otherwise than before."""
    num_lines = num_changed = num_bytes = num_new_bytes = 0
    lines = (line for text in texts for line in text.split("\n") if line)
    for batch in batches(lines, _BATCH_CHARACTERS):
        encodings = new.backend_tokenizer.encode_batch(batch, add_special_tokens=False)
        for line, before, after in zip(batch, _encoded(old, batch), encodings):
            num_lines += 1
            num_bytes += len(line.encode())
            if before != after.ids:
                num_changed += 1
                spans = (span for span, i in zip(after.offsets, after.ids) if is_new(i))
                num_new_bytes += sum(len(line[start:end].encode()) for start, end in spans)
    return {
        "num_lines": num_lines,
        "share_of_lines_changed": num_changed / max(num_lines, 1),
        "share_of_bytes_in_new_tokens": num_new_bytes / max(num_bytes, 1),
    }


def _encoded(tokenizer: PreTrainedTokenizerFast, texts: Iterable[str]) -> Iterable[list[int]]:
    for batch in batches(texts, _BATCH_CHARACTERS):
        for encoding in tokenizer.backend_tokenizer.encode_batch_fast(batch, add_special_tokens=False):
            yield encoding.ids
