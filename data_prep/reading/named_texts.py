"""Named texts to report figures on: `NAME=FILE` on a command line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from common.artifacts import digest_bytes
from data_prep.reading.corpora import text_files
from data_prep.reading.documents import Documents


@dataclass(frozen=True)
class Text:
    """A held-out text: what results call it (its language), its documents and their digest."""

    name: str
    path: Path
    documents: list[str]
    digest: str


def read_texts(arguments: Sequence[str], *, option: str = "--text", text_key: str = "text", separator: str | None = None) -> list[Text]:
    """Held-out texts from `NAME=FILE` arguments, split into documents as `data_prep.to_megatron` does.

    Args:
        option: what errors call the option.

    Raises:
        ValueError: if an argument has no name, a name comes twice, or a file cannot be read or is empty.
    """
    texts: dict[str, Text] = {}
    for argument in arguments:
        name, equals, file = argument.partition("=")
        if not (equals and file and name.replace("-", "").replace("_", "").isalnum()):
            raise ValueError(f"{option} {argument} is not of the form NAME=FILE, for example sl=heldout.sl.txt")
        if name in texts:
            raise ValueError(f"{option} names {name} twice; give each text its own name")
        path = Path(file)
        if not path.exists():
            raise ValueError(f"the text file {path} does not exist")
        documents = list(Documents(text_files([path]), text_key=text_key, separator=separator))
        # Of the documents, not of the file: cut otherwise, the same file is another text.
        texts[name] = Text(name, path, documents, digest_bytes(json.dumps(documents).encode()))
    return list(texts.values())
