"""A folder with only SentencePiece's own file, loaded as a fast tokenizer: Llama 2, Mistral, XLM-R and similar models.

The library's conversion needs a protobuf module that clashes with other packages of this project; this one reads the few fields that
the `sentencepiece` package does not tell.  Ids are SentencePiece's own; XLM-R's are those behind fairseq's shift.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.plain_files import read_json
from data_prep.tokenizers.protobuf import read_fields
from data_prep.tokenizers.sentencepiece_backend import ADVERSARIAL_TEXTS, SPACE, equal_rivals, hf_tokenizer, split_in_two_ways

if TYPE_CHECKING:
    from sentencepiece import SentencePieceProcessor
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

SENTENCEPIECE_FILES = ("tokenizer.model", "sentencepiece.bpe.model")

_UNIGRAM, _BPE = 1, 2
_MODEL_TYPES = {_UNIGRAM: "Unigram", _BPE: "BPE", 3: "word", 4: "character"}
_ROLES = ("bos_token", "eos_token", "unk_token", "pad_token", "cls_token", "sep_token", "mask_token")
_FAIRSEQ_FILE = "sentencepiece.bpe.model"
_XLM_R = ("XLMRobertaTokenizer", "XLMRobertaTokenizerFast", "xlm-roberta", "xlm-roberta-xl")
_XLM_R_SPECIALS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>", "cls_token": "<s>",
                   "sep_token": "</s>", "mask_token": "<mask>"}  # fmt: skip
# Letters with rules of their own before marks, of which rules may join both.
_CLUSTERS = ("ﬁ\u0301", "Ａ\u0301", "\u1e9b\u0323", "e\u0301\u0323", "c\u030c")
# The ids that fairseq gave its own tokens, before all pieces; SentencePiece's first three are left out.
_FAIRSEQ_TOKENS = ("<s>", "<pad>", "</s>", "<unk>")
_FAIRSEQ_SKIPPED = 3
_FAIRSEQ_SHIFT = len(_FAIRSEQ_TOKENS) - _FAIRSEQ_SKIPPED


@dataclass(frozen=True)
class Settings:
    """What a SentencePiece file says about its model, and the `sentencepiece` package does not.

    Attributes:
        model_type: the number of the kind of model, see `_MODEL_TYPES`.
        charsmap: the rules of the normalizer as a compiled table; empty for `identity`.
        add_dummy_prefix: whether a space is put before a text.
        remove_extra_whitespaces: whether spaces at the ends are dropped and those in a row are made one.
    """

    model_type: int = _UNIGRAM
    charsmap: bytes = b""
    add_dummy_prefix: bool = True
    remove_extra_whitespaces: bool = True


def read_settings(model_proto: bytes) -> Settings:
    """Read the settings (sentencepiece_model.proto: trainer_spec is field 2, normalizer_spec field 3).

    Raises:
        ValueError: if the bytes are not a SentencePiece model.
    """
    trainer: dict[int, Any] = {}
    normalizer: dict[int, Any] = {}
    try:
        for field in read_fields(model_proto):
            if field.number in (2, 3) and isinstance(field.value, bytes):
                (trainer if field.number == 2 else normalizer).update((inner.number, inner.value) for inner in read_fields(field.value))
    except (IndexError, TypeError, ValueError) as error:
        raise ValueError(f"not a SentencePiece model ({error})") from error
    return Settings(trainer.get(3, _UNIGRAM), normalizer.get(2, b""), bool(normalizer.get(3, True)), bool(normalizer.get(4, True)))


def load_sentencepiece(directory: Path) -> PreTrainedTokenizerFast:
    """The fast tokenizer of a folder without tokenizer.json.

    Its ids are compared with SentencePiece's on adversarial texts and where pieces overlap themselves.

    Raises:
        ValueError: if the file is broken, of another kind, would give other ids, or is of a class with a table of ids that is not known here.
    """
    from sentencepiece import SentencePieceProcessor
    from transformers import PreTrainedTokenizerFast

    path = next(directory / name for name in SENTENCEPIECE_FILES if (directory / name).is_file())
    proto = path.read_bytes()
    try:
        settings = read_settings(proto)
        model = SentencePieceProcessor(model_proto=proto)
        if not model.get_piece_size():  # as of an empty file
            raise ValueError("it has no pieces")
    except (ValueError, RuntimeError) as error:
        raise ValueError(f"{path} cannot be read: {error}; copy or download it again") from error
    if settings.model_type not in (_UNIGRAM, _BPE):
        raise ValueError(
            f"{path} is a {_MODEL_TYPES.get(settings.model_type, 'unknown')} model; supported are BPE and Unigram: add its tokenizer.json"
        )
    config = _config(directory)
    is_xlm_r = _is_xlm_r(path, config)
    is_bpe = settings.model_type == _BPE
    if is_bpe and (rivals := equal_rivals(model)):
        raise ValueError(
            f"{path} cannot be read as a fast tokenizer: its pieces {rivals[0]!r} and {rivals[1]!r} have equal scores and may overlap, where"
            " SentencePiece joins the left one and a list of merges always the same; give the pieces scores of their own, or add its tokenizer.json"
        )
    backend = _backend(model, settings, is_xlm_r=is_xlm_r)
    _add_tokens(backend, directory, config)
    specials = _specials(model, config, is_xlm_r=is_xlm_r)
    _surround(backend, specials, config, is_xlm_r=is_xlm_r)
    texts = [*ADVERSARIAL_TEXTS, *_CLUSTERS, *(split_in_two_ways(model) if is_bpe else ())]
    _require_equal_ids(model, backend, path, texts, is_xlm_r=is_xlm_r)
    if config.get("legacy") is False:
        _prefix_first_only(backend, settings, config)
    keep = {key: config[key] for key in ("chat_template", "model_max_length") if key in config}
    return PreTrainedTokenizerFast(tokenizer_object=backend, clean_up_tokenization_spaces=False, **specials, **keep)


def _backend(model: SentencePieceProcessor, settings: Settings, *, is_xlm_r: bool) -> Tokenizer:
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    if not is_xlm_r:
        is_unigram = settings.model_type == _UNIGRAM
        tokenizer = hf_tokenizer(model, is_unigram=is_unigram)
        if not is_unigram and any(SPACE in model.id_to_piece(i)[1:] for i in range(model.get_piece_size())):
            tokenizer.pre_tokenizer = None  # a piece of several spaces joins what a cut before each space would part
    else:
        pieces = [(model.id_to_piece(i), model.get_score(i)) for i in range(_FAIRSEQ_SKIPPED, model.get_piece_size())]
        pieces = [*((token, 0.0) for token in _FAIRSEQ_TOKENS), *pieces, ("<mask>", 0.0)]
        specials = [*_FAIRSEQ_TOKENS, "<mask>"]
        tokenizer = Tokenizer(models.Unigram(pieces, unk_id=_FAIRSEQ_TOKENS.index("<unk>"), byte_fallback=False))
        tokenizer.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
        tokenizer.pre_tokenizer = pre_tokenizers.Split(SPACE, "merged_with_next")
        tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False, lstrip=token == "<mask>") for token in specials])
    steps: list[Any] = [normalizers.Precompiled(settings.charsmap)] if settings.charsmap else []
    if settings.remove_extra_whitespaces:
        steps += [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Replace(Regex(rf"\A |[ {SPACE}]+\z"), "")]
    steps += [normalizers.Prepend(SPACE)] if settings.add_dummy_prefix else []
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE)])
    return tokenizer


def _config(directory: Path) -> dict[str, Any]:
    """tokenizer_config.json over special_tokens_map.json; empty where there is neither."""
    config: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        path = directory / name
        if path.is_file():
            config.update(read_json(path))
    return config


def _is_xlm_r(path: Path, config: Mapping[str, Any]) -> bool:
    """Whether ids are shifted as XLM-R's; the folder's own words decide, then the name of the file, which other classes use too.

    Raises:
        ValueError: if it is of another class that shifts ids (CamemBERT, mBART, NLLB, XGLM, ...), each by its own table.
    """
    named = config.get("tokenizer_class")
    if named is None and (path.parent / "config.json").is_file():
        named = read_json(path.parent / "config.json").get("model_type")
    if path.name == _FAIRSEQ_FILE and named not in (None, *_XLM_R):
        raise ValueError(
            f"{path} is of {named!r}, whose ids are not those of the file, by a table of its own; known is XLM-R's: add its tokenizer.json"
        )
    return path.name == _FAIRSEQ_FILE or named in _XLM_R


def _add_tokens(tokenizer: Tokenizer, directory: Path, config: Mapping[str, Any]) -> None:
    """Add the tokens that other files give ids beyond the pieces.

    Raises:
        ValueError: if they do not follow the pieces without gaps.
    """
    from tokenizers import AddedToken

    listed: dict[int, tuple[str, dict[str, bool]]] = {}
    if (directory / "added_tokens.json").is_file():
        listed = {i: (token, {"special": True}) for token, i in read_json(directory / "added_tokens.json").items()}
    for token_id, entry in config.get("added_tokens_decoder", {}).items():
        flags = {flag: bool(entry.get(flag)) for flag in ("special", "lstrip", "rstrip", "single_word")}
        listed[int(token_id)] = (entry["content"], flags)
    for token_id, (token, flags) in sorted(listed.items()):
        if tokenizer.token_to_id(token) is None:
            tokenizer.add_tokens([AddedToken(token, normalized=False, **flags)])
        if tokenizer.token_to_id(token) != token_id:
            raise ValueError(
                f"{directory} gives the added token {token!r} id {token_id}, which does not follow the {tokenizer.get_vocab_size()} others;"
                " add its tokenizer.json"
            )


def _specials(model: SentencePieceProcessor, config: Mapping[str, Any], *, is_xlm_r: bool) -> dict[str, str]:
    if is_xlm_r:
        named = dict(_XLM_R_SPECIALS)
    else:
        ids = {"bos_token": model.bos_id(), "eos_token": model.eos_id(), "pad_token": model.pad_id(), "unk_token": model.unk_id()}
        named = {role: model.id_to_piece(i) for role, i in ids.items() if i >= 0}
    for role in _ROLES:
        value = config.get(role)
        if value is not None:
            named[role] = value["content"] if isinstance(value, dict) else value
    return named


def _surround(tokenizer: Tokenizer, specials: Mapping[str, str], config: Mapping[str, Any], *, is_xlm_r: bool) -> None:
    """Put around a text what the model's own class does: <s> and </s> for XLM-R, and what `add_bos_token` and `add_eos_token` say."""
    from tokenizers import processors

    is_llama = str(config.get("tokenizer_class", "")).startswith("Llama")
    before = specials.get("bos_token") if is_xlm_r or config.get("add_bos_token", is_llama) else None
    after = specials.get("eos_token") if is_xlm_r or config.get("add_eos_token", False) else None
    if before or after:
        parts = [part for part in (before, "$A", after) if part]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=" ".join(parts),
            pair=" ".join([*parts, *(part.replace("$A", "$B") for part in parts)]),
            special_tokens=[(token, tokenizer.token_to_id(token)) for token in dict.fromkeys((before, after)) if token],
        )


def _prefix_first_only(tokenizer: Tokenizer, settings: Settings, config: Mapping[str, Any]) -> None:
    """Put the dummy space before a text alone, not before what follows an added token: what `legacy` false of Llama and T5 means."""
    from tokenizers import normalizers, pre_tokenizers

    if not settings.add_dummy_prefix:
        return
    steps = [step for step in _steps(tokenizer.normalizer) if not isinstance(step, normalizers.Prepend)]
    tokenizer.normalizer = normalizers.Sequence(steps)
    if config.get("add_prefix_space", True):
        # By then no space is left in the text, so that the first of both puts one before any text, also one that begins with a mark.
        cutters = [pre_tokenizers.Metaspace(" ", "first", split=False), pre_tokenizers.Metaspace(SPACE, "never", split=False)]
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*cutters, *([tokenizer.pre_tokenizer] if tokenizer.pre_tokenizer else [])])


def _steps(normalizer: Any) -> list[Any]:
    return [normalizer[i] for i in range(len(normalizer))]


def _require_equal_ids(model: SentencePieceProcessor, tokenizer: Tokenizer, path: Path, texts: Iterable[str], *, is_xlm_r: bool) -> None:
    specials = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    for text in texts:
        if any(token in text for token in specials):
            continue  # a fast tokenizer takes it for the special token, SentencePiece for text
        expected, found = model.encode(text), tokenizer.encode(text, add_special_tokens=False).ids
        if is_xlm_r:
            expected = [_FAIRSEQ_TOKENS.index("<unk>") if i == model.unk_id() else i + _FAIRSEQ_SHIFT for i in expected]
        if expected != found:
            raise ValueError(
                f"{path} cannot be read as a fast tokenizer: the ids of {text[:40]!r} are {expected[:20]} in SentencePiece, but {found[:20]} here;"
                " add its tokenizer.json"
            )
