"""What a conversion does with a hostile folder, found out in a process that may hang, fill memory or die.

A trial does to a folder all that the commands of this project do, and then what only an engine does: it loads it as torch, Megatron and
TransformerEngine would, if `inspect` found no problem.  What must hold whatever the folder is:

* nothing in it runs, nobody is asked anything, and no file from outside of it gets into an output;
* a refusal is a ValueError of one sentence, and leaves no output;
* a small folder takes neither long nor much memory;
* a tensor that is given out is the one that stands in the file, every value of it;
* ids and rows are those that the tokenizers library gives for the file as it stands, whatever holes, frames and settings it has.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import resource
import select
import shutil
import signal
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from conversion import hf_to_nemo, nemo_to_hf, transfer
from conversion.checkpoints.vocabulary_edit import append, untie
from conversion.edit_vocabulary import edit
from conversion.formats.dist_checkpoint import read_dist_checkpoint
from conversion.inspection import describe
from conversion.layouts.moving import change
from conversion.verify import Side
from data_prep import to_megatron
from data_prep.tokenizers.files import load_tokenizer
from eval.comet import require_safe_checkpoint
from tests.conversion.embedding_fixtures import demo_text
from tests.processes import fork

SECRET = b"a secret that belongs to nobody who reads checkpoints"
_SECONDS = 30
_MEGABYTES = 400

Trial = Callable[[], list[str]]


def findings(trial: Trial) -> list[str]:
    """What a trial in a process of its own found, its hanging, dying or eating of memory included."""
    reader, writer = os.pipe()
    child = fork()
    if child == 0:
        os.close(reader)
        _be_the_child(trial, writer)
    os.close(writer)
    said, end = b"", time.monotonic() + _SECONDS
    while select.select([reader], [], [], max(end - time.monotonic(), 0))[0] and (part := os.read(reader, 1 << 16)):
        said += part
    late = time.monotonic() > end
    if late:
        os.kill(child, signal.SIGKILL)
    os.close(reader)
    _, status = os.waitpid(child, 0)
    if late:
        return [f"it takes more than {_SECONDS} s"]
    if os.waitstatus_to_exitcode(status):
        return [f"it ends with {os.waitstatus_to_exitcode(status)}"]
    found: list[str] = json.loads(said)
    return found


def _be_the_child(trial: Trial, writer: int) -> None:
    code = 1
    with contextlib.suppress(BaseException):
        null = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(null, stream)
        torch.set_num_threads(1)
        before = _resident_megabytes()
        found = trial()
        if (grown := _resident_megabytes() - before) > _MEGABYTES:
            found.append(f"it takes {grown} MB")
        os.write(writer, json.dumps(found).encode())
        code = 0
    os._exit(code)


def _resident_megabytes() -> int:
    """The most so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def try_nemo(folder: Path, work_dir: Path, proof: Path) -> list[str]:
    """All that is done with a NeMo folder."""
    out = work_dir / "out"
    calls: dict[str, Callable[[], object]] = {
        "verify": lambda: [tensor.read() for tensor in Side.open(folder).tensors.values()],
        "nemo_to_hf": lambda: nemo_to_hf.export(folder, out),
        "change_layout": lambda: change(folder, out, layout="megatron-lm"),
    }
    found = [problem for name, call in calls.items() for problem in _try(name, call, out)]
    problems = ["inspect refuses it"]

    def look() -> None:
        problems[:] = describe(folder, deep=True).problems

    found += _try("inspect", look, out)
    if proof.exists():
        found.append("code of the folder ran in a command")
    elif not problems:
        with contextlib.suppress(Exception):
            _load_for_real(folder / "weights")
        if proof.exists():
            found.append("inspect finds nothing, and the engine would run code")
        else:
            found += _try("the reader", lambda: _compare_values(folder / "weights"), out)
    return found


def try_hf(folder: Path, work_dir: Path, proof: Path) -> list[str]:
    """All that is done with a Hugging Face folder."""
    out = work_dir / "out"
    calls: dict[str, Callable[[], object]] = {
        "hf_to_nemo": lambda: hf_to_nemo.convert(folder, out),
        "edit_vocabulary": lambda: edit(folder, out, untie, arguments={}),
        "inspect": lambda: describe(folder, deep=True),
        "the tokenizer": lambda: load_tokenizer(folder),
    }
    found = [problem for name, call in calls.items() for problem in _try(name, call, out)]
    return [*found, "code of the folder ran in a command"] if proof.exists() else found


def try_trainer_checkpoint(folder: Path, work_dir: Path, proof: Path) -> list[str]:
    """What is done with a checkpoint of Lightning's trainer, which its library then loads with all that it names."""
    path = folder / "model.ckpt"
    found = _try("eval.comet", lambda: require_safe_checkpoint(path), work_dir / "out")
    if proof.exists():
        return [*found, "code of the file ran when it was looked at"]
    try:
        require_safe_checkpoint(path)
    except ValueError:
        return found
    with contextlib.suppress(Exception):
        torch.load(path, weights_only=False)
    return [*found, "it is let through, and the library would run code"] if proof.exists() else found


TEXTS = [*demo_text("sl")[:600].split(". "), "one <|x|> two<|y|>", "  a  b\t c ", "12345"]
NEW_TOKENS = ("žužek", " kolovrat", "zz9")


def try_tokenizer(folder: Path, work_dir: Path, proof: Path, *, source: Path) -> list[str]:
    """All that is done with a folder whose tokenizer was changed, and its ids and rows found out by the tokenizers library alone.

    Args:
        source: a healthy folder with the tokenizer before the change.
    """
    out, text = work_dir / "out", work_dir / "text.jsonl"
    text.write_text("".join(json.dumps({"text": line}) + "\n" for line in TEXTS))
    new = partial(append, num_rows=len(NEW_TOKENS), method="mean", seed=1, tokens=NEW_TOKENS, starts={})
    words = {
        "to_megatron": ["--input", text, "--tokenizer", folder, "--workers", 1],
        "transfer": ["--source", source, "--tokenizer", folder, "--method", "mean"],
    }
    calls: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "to_megatron": (lambda: to_megatron.main([*map(str, words["to_megatron"]), "--output", str(out)]), lambda: _check_ids(folder, out)),
        "transfer": (lambda: transfer.main([*map(str, words["transfer"]), "--output", str(out)]), lambda: _check_rows(folder, source, out)),
        "edit_vocabulary": (lambda: edit(folder, out, new, arguments={}), lambda: _check_appended(folder, out)),
        "hf_to_nemo": (lambda: hf_to_nemo.convert(folder, out), lambda: _check_way_back(folder, out)),
        "inspect": (lambda: describe(folder, deep=True, tokenizer=True), lambda: None),
    }
    found = [problem for name, (call, check) in calls.items() for problem in _try(name, call, out, check=check)]
    return [*found, "code of the folder ran in a command"] if proof.exists() else found


def _backend(folder: Path) -> Tokenizer:
    """The tokenizer as its file has it, without what a caller had set before it was saved."""
    backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.no_truncation()
    backend.no_padding()
    return backend


def _check_ids(folder: Path, out: Path) -> None:
    """Each document is front, ids and end of text."""
    backend, facts = _backend(folder), json.loads((out / "scion.json").read_text())["facts"]
    config = json.loads((folder / "tokenizer_config.json").read_text())
    eos = backend.token_to_id(config["eos_token"])
    if eos is None:  # which the library adds
        eos = facts["eos_token_id"]
        assert eos not in backend.get_vocab().values()
    special = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    for text, document in zip(TEXTS, _documents(out), strict=True):
        if any(token in text for token in special):
            continue  # which is text there
        plain, framed = (backend.encode(text, add_special_tokens=framed).ids for framed in (False, True))
        start = next(i for i in range(len(framed)) if framed[i : i + len(plain)] == plain)
        front, back = framed[:start], framed[start + len(plain) :]
        assert back in ([], [eos]), "the end of a text is another than the end of a document"
        assert document == [*([] if front == [eos] else front), *plain, eos], text


def _documents(out: Path) -> list[list[int]]:
    """Megatron's two files, read by their description: magic, version, code of the type, counts, lengths."""
    [index], [data] = out.glob("*.idx"), out.glob("*.bin")
    content = index.read_bytes()
    ids = np.fromfile(data, {4: np.int32, 8: np.uint16}[content[17]]).tolist()
    ends = np.cumsum(np.frombuffer(content, np.int32, int.from_bytes(content[18:26], "little"), 34)).tolist()
    return [ids[start:end] for start, end in zip([0, *ends], ends)]


def _embeddings(folder: Path) -> torch.Tensor:
    return load_file(folder / "model.safetensors")["model.decoder.embed_tokens.weight"]


def _loaded(folder: Path) -> Any:
    """As transformers loads it, with the tokens that tokenizer_config.json adds."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(folder)


def _check_rows(folder: Path, source: Path, out: Path) -> None:
    """As many rows as ids, and a token that both have and that texts reach keeps its own."""
    before, rows, old = _backend(source), _embeddings(out), _embeddings(source)
    wanted, found = _loaded(folder), _loaded(out)
    assert wanted.get_vocab() == found.get_vocab() and len(rows) == max(found.get_vocab().values()) + 1
    special = {*found.all_special_tokens, *_loaded(source).all_special_tokens, *found.get_added_vocab()}
    for token, new_id in found.get_vocab().items():
        old_id = before.token_to_id(token)
        if token not in special and old_id is not None and [piece.id for piece in before.model.tokenize(token)] == [old_id]:
            assert torch.equal(rows[new_id], old[old_id]), f"{token!r} has another row"


def _check_appended(folder: Path, out: Path) -> None:
    """Old tokens keep id and row; each new one has an id that nothing else has, by which it is found in a text and decoded."""
    before, after, old, rows = _loaded(folder).get_vocab(), _backend(out), _embeddings(folder), _embeddings(out)
    known = _loaded(out).get_vocab()
    assert before.items() <= known.items()
    kept = sorted({*before.values()})
    assert torch.equal(rows[kept], old[kept]) and len(rows) >= max(known.values()) + 1
    for token in NEW_TOKENS:
        assert known[token] not in before.values() and known[token] == after.token_to_id(token)
        assert known[token] in after.encode(f"a{token} b", add_special_tokens=False).ids and after.decode([known[token]]) == token
    assert len({known[token] for token in NEW_TOKENS}) == len(NEW_TOKENS)


def _check_way_back(folder: Path, out: Path) -> None:
    back = out.with_name("back")
    nemo_to_hf.export(out, back)
    assert torch.equal(_embeddings(back), _embeddings(folder))
    assert _backend(back).to_str() == _backend(folder).to_str()
    shutil.rmtree(back)


def _try(name: str, call: Callable[[], object], out: Path, check: Callable[[], object] = lambda: None) -> list[str]:
    """What is wrong with how a call ends."""
    try:
        call()
    except ValueError as error:
        text = str(error)
        if type(error) is not ValueError or not 20 < len(text) < 3000 or "\n" in text:
            return [f"{name} refuses with {type(error).__name__}: {text[:300]!r}"]
        return [f"{name} refuses and leaves an output"] if out.exists() or list(out.parent.glob(".out*")) else []
    except OSError as error:  # one place turns these into a sentence, for every command
        return [] if error.filename and not out.exists() else [f"{name}: {error!r}"]
    except BaseException:  # a panic of Rust is not an Exception
        return [f"{name}: {traceback.format_exc()[-900:]}"]
    wrong = []
    try:
        check()
    except BaseException:
        wrong = [f"{name} gives what is not right: {traceback.format_exc()[-900:]}"]
    leaked = [path.name for path in out.rglob("*") if path.is_file() and SECRET in path.read_bytes()] if out.exists() else []
    shutil.rmtree(out, ignore_errors=True)
    return [f"{name} copies a secret into {leaked}"] if leaked else wrong


def _compare_values(weights: Path) -> None:
    """Hold each tensor to what its chunks say when they are put together by torch, with a mark where there is none."""
    tensors = read_dist_checkpoint(weights, prefix="module.")
    metadata = pickle.loads((weights / ".metadata").read_bytes())
    for name, tensor in tensors.items():
        bits, layers = tensor.bits(), name.split(".")
        key = f"module.{name}" if f"module.{name}" in metadata.state_dict_metadata else None
        number = None
        if key is None:
            number = next(int(part) for part in layers if part.isdigit())
            key = "module." + ".".join(part for part in layers if not part.isdigit())
        covered = np.zeros(tuple(metadata.state_dict_metadata[key].size), dtype=np.int32)
        for chunk in metadata.state_dict_metadata[key].chunks:
            covered[tuple(slice(o, o + s) for o, s in zip(chunk.offsets, chunk.sizes, strict=True))] += 1
        assert (covered == 1).all(), f"{key} has values that no chunk, or more than one, holds: they are whatever memory held"
        assert bits.shape == (covered.shape if number is None else covered.shape[1:])


def _load_for_real(weights: Path) -> None:
    """Load all that an engine unpickles as it does, which runs what stands there."""
    from torch.distributed.checkpoint import FileSystemReader
    from torch.distributed.checkpoint.metadata import BytesStorageMetadata

    metadata = FileSystemReader(weights).read_metadata()
    for index, place in metadata.storage_data.items():
        if isinstance(metadata.state_dict_metadata.get(index.fqn), BytesStorageMetadata):
            with contextlib.suppress(Exception), (weights / place.relative_path).open("rb") as stream:
                stream.seek(place.offset)
                value = torch.load(io.BytesIO(stream.read(place.length)), weights_only=False)
                if "_extra_state" in index.fqn:
                    _load_extra_state(value)
    with contextlib.suppress(Exception):
        torch.load(weights / "common.pt", weights_only=False)


def _load_extra_state(value: Any) -> None:
    """What TransformerEngine does with its state, in both of its forms."""
    if isinstance(value, torch.Tensor) and value.numel():
        pickle.loads(value.numpy().tobytes())
    elif isinstance(value, io.BytesIO):
        value.seek(0)
        torch.load(value, weights_only=False)
