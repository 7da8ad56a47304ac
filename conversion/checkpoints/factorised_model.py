"""Models of transformers with a factorised embedding, coordinates times primitives (OFA, Liu et al. 2024), tied to the output layer.

    from conversion.checkpoints.factorised_model import load_factorised
    model = load_factorised("work/factorised")    # of `conversion.nemo_to_hf --keep-factors`; its tokenizer by AutoTokenizer, as ever

It is the family's own class, for masked or next tokens, with two modules replaced; nothing of the folder is run.  With 100 dimensions for 401,145
tokens the table and head take 40 million parameters in place of 308.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from common.own_files import require_own
from conversion.checkpoints.factors import FACTORISED_NAME, factor_names
from conversion.checkpoints.hf_files import CONFIG_NAME, load_config, read_json
from conversion.checkpoints.token_names import names_of
from conversion.families import family_of
from conversion.formats.safetensors_file import read_safetensors

_FEW_ROWS = 8  # of the table that the library makes and that is replaced


class FactorisedEmbedding(nn.Module):
    """Rows of a table that is a product.

    Attributes:
        coordinates: (num_tokens, factorised_size)
        primitives: (factorised_size, hidden_size)
        scale: times which rows go into the layers; Gemma 3's table does that itself.
    """

    def __init__(self, coordinates: Tensor, primitives: Tensor) -> None:
        super().__init__()
        self.scale = 1.0
        self.coordinates, self.primitives = nn.Parameter(coordinates), nn.Parameter(primitives)
        self.num_embeddings, self.embedding_dim = len(coordinates), primitives.shape[1]

    @property
    def weight(self) -> Tensor:
        """(num_tokens, hidden_size), the product; made anew each time."""
        return self.coordinates @ self.primitives

    def forward(self, ids: Tensor) -> Tensor:
        """(..., hidden_size) rows of ids (...)."""
        rows = F.embedding(ids, self.coordinates) @ self.primitives
        return rows if self.scale == 1.0 else rows * torch.tensor(self.scale, dtype=rows.dtype, device=rows.device)


class FactorisedHead(nn.Module):
    """Logits by the same two factors, one after the other.

    Attributes:
        bias: (num_tokens,); None where the family has none.
    """

    def __init__(self, embedding: FactorisedEmbedding, bias: nn.Parameter | None) -> None:
        super().__init__()
        self._embedding = [embedding]  # in a list: its parameters are the embedding's, and not twice in the model
        self.bias = bias
        self.in_features, self.out_features = embedding.embedding_dim, embedding.num_embeddings

    @property
    def weight(self) -> Tensor:
        """(num_tokens, hidden_size), the product; made anew each time."""
        return self._embedding[0].weight

    def forward(self, hidden: Tensor) -> Tensor:
        """(..., num_tokens) logits of states (..., hidden_size)."""
        [embedding] = self._embedding
        return F.linear(F.linear(hidden, embedding.primitives), embedding.coordinates, self.bias)


def load_factorised(directory: Path | str) -> Any:
    """The model in a folder, in the dtype of its weights, for evaluation.

    Raises:
        ValueError: if the folder holds no such model, or the factors and the other tensors do not belong together.
    """
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

    directory = Path(directory)
    path = require_own(directory / FACTORISED_NAME)
    if not path.is_file():
        raise ValueError(
            f"{directory} holds no {FACTORISED_NAME}, as `python -m conversion.nemo_to_hf --keep-factors` writes it; a folder with"
            " model.safetensors is loaded by transformers itself"
        )
    model_type = str(read_json(directory / CONFIG_NAME, expected="expected that of the model").get("model_type"))
    tensors = {tensor.name: tensor.read() for tensor in read_safetensors(path)}
    table = _table_name(tensors, directory)
    coordinates, primitives = (tensors.pop(name) for name in factor_names(table).values())
    config = load_config(directory)
    if config.vocab_size != len(coordinates) or config.hidden_size != primitives.shape[1] or coordinates.shape[1] != primitives.shape[0]:
        raise ValueError(
            f"{path} has factors of {tuple(coordinates.shape)} and {tuple(primitives.shape)}, but config.json speaks of {config.vocab_size} tokens"
            f" of {config.hidden_size} dimensions; copy the folder again"
        )
    config.vocab_size = max(_FEW_ROWS, (config.pad_token_id or 0) + 1)
    library: Any = AutoModelForMaskedLM if family_of(model_type, source=str(directory)).masked else AutoModelForCausalLM
    model = library.from_config(config, dtype=coordinates.dtype).to(coordinates.dtype)  # Apertus has its slopes in bfloat16 even so
    _replace(model, FactorisedEmbedding(coordinates, primitives), tensors, table)
    config.vocab_size = len(coordinates)
    buffers = dict(model.named_buffers()).keys() & model.state_dict().keys()  # the slopes of Apertus's activation
    names = {name for name, _ in model.named_parameters()} | buffers
    expected = {name for name in names if not name.startswith(table.removesuffix("weight"))}
    if expected != set(tensors):
        different = ", ".join(sorted(expected ^ set(tensors)))
        raise ValueError(f"{path} and the model of its config.json differ in {different}; copy the folder again")
    model.load_state_dict(tensors, strict=False)
    return model.eval()


def _table_name(tensors: dict[str, Tensor], directory: Path) -> str:
    found = [name.removesuffix("coordinates") + "weight" for name in tensors if name.endswith(".coordinates")]
    if len(found) != 1 or any(name not in tensors for name in factor_names(found[0]).values()):
        raise ValueError(f"{directory / FACTORISED_NAME} has no coordinates and primitives of one token table; copy the folder again")
    return found[0]


def _replace(model: Any, embedding: FactorisedEmbedding, tensors: dict[str, Tensor], table: str) -> None:
    """Put the factors where the library's table, its head and the head's bias are."""
    names = names_of(table)
    bias = next((name for name in (names.biases if names else ()) if name in tensors), None)
    parameter = None if bias is None else nn.Parameter(torch.empty_like(tensors[bias]))
    if bias is not None:
        owner, _, name = bias.rpartition(".")
        setattr(model.get_submodule(owner), name, parameter)
    embedding.scale = float(getattr(model.get_input_embeddings(), "embed_scale", 1.0))
    model.set_input_embeddings(embedding)
    model.set_output_embeddings(FactorisedHead(embedding, parameter))
