"""The little that NeMo's data module wants to know of a tokenizer when the text is tokenized already."""

from __future__ import annotations


class EndOfDocument:
    """Vocabulary size, end-of-document id and identity.

    Megatron's data sets ask a tokenizer for `eod` and, to name their index files, for `unique_identifiers`.
    """

    def __init__(self, *, vocab_size: int, eos_id: int, identity: str) -> None:
        self.vocab_size, self.eos_id, self.eod = vocab_size, eos_id, eos_id
        self.unique_identifiers = {"digest": identity}
