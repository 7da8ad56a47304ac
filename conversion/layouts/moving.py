"""Convert the layout of a checkpoint for another program: new tensor names for the same data files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.artifacts import (
    Manifest,
    digest_file,
    digest_files,
    read_manifest,
    require_free_space,
    staged_directory,
    write_manifest,
)
from common.own_files import require_all_own

if TYPE_CHECKING:
    from conversion.layouts.data_files import PlacedData
    from conversion.layouts.source import Source

STAGE = "conversion.change_layout"
NEMO, MEGATRON_LM, MEGATRON_BRIDGE = LAYOUTS = ("nemo", "megatron-lm", "megatron-bridge")


def change(
    input_dir: Path, output_dir: Path, *, layout: str, context_of: Path | None = None, copy: bool = False, placed_at: Path | None = None
) -> Manifest:
    """Write a checkpoint in another layout.

    Args:
        layout: one of LAYOUTS.
        context_of: NeMo checkpoint of this project that says what the model is, where the input does not.
        copy: copy the weights even where files could be linked.
        placed_at: where the output will lie in the end, if it is moved there.

    Raises:
        ValueError: if the input is missing or damaged, if its tensors are not those of the model, if the layout cannot express
            the model, or if the output exists or the disk is full.
    """
    from conversion.layouts.source import CONTEXT, open_source

    source = open_source(input_dir, context_of)
    require_all_own(source.context)
    manifest = read_manifest(source.manifest_dir)
    name = folder_name(layout, step=source.step)
    # Before anything is written, because it can refuse.
    common, run_config = _common(source, layout, (placed_at or Path(output_dir)) / name), _run_config(source, layout)
    with staged_directory(output_dir) as staging:
        folder = staging / name
        weights = folder / "weights" if layout == NEMO else folder
        weights.mkdir(parents=True, exist_ok=True)
        data = _place_data(source, weights, copy=copy)
        shutil.copytree(source.context, folder / CONTEXT, copy_function=shutil.copyfile)
        _write_index(source, data, weights, common, prefix="module." if layout == NEMO else "")
        _write_trackers(source, staging, folder, layout, run_config)
        return write_manifest(
            staging,
            stage=STAGE,
            facts=_facts(source, manifest, layout, data),
            arguments={"input": str(input_dir), "to": layout, "context": context_of, "copy": copy},
            inputs={"weights": manifest.digest if manifest else digest_files(source.metadata.directory, [".metadata"])},
            known_digests=_digests(source, manifest, staging, weights, data),
            hash_files=False,
        )


def folder_name(layout: str, *, step: int) -> str:
    """The folder of the one checkpoint; Megatron-LM calls one that nothing has trained a release, and refuses iteration 0."""
    if layout == NEMO:
        return "."
    return "release" if layout == MEGATRON_LM and not step else f"iter_{step:07d}"


def _common(source: Source, layout: str, final_dir: Path) -> dict[str, Any]:
    """What is not sharded."""
    from conversion.layouts import megatron_lm
    from conversion.layouts.source import CONTEXT

    content = {"content_metadata": {"singleton_local_shards": not source.is_stacked}}
    if layout == NEMO:
        return content
    versions = {"checkpoint_version": megatron_lm.CHECKPOINT_VERSION, "iteration": source.step}
    if layout == MEGATRON_BRIDGE:
        return {**content, **versions}
    tokenizer = str((final_dir / CONTEXT / "hf").absolute()) if _tokenizer_files(source) else None
    arguments = megatron_lm.arguments(
        source.config, num_rows=source.num_rows, dtype=source.dtype, tokenizer=tokenizer, step=source.step, samples=source.samples
    )
    return {**content, **versions, "args": arguments}


def _run_config(source: Source, layout: str) -> dict[str, Any] | None:
    from conversion.layouts import megatron_bridge

    if layout != MEGATRON_BRIDGE:
        return None
    return megatron_bridge.run_config(source.config, dtype=source.dtype, has_tokenizer=bool(_tokenizer_files(source)))


def _tokenizer_files(source: Source) -> list[Path]:
    from data_prep.tokenizers.files import tokenizer_files

    return tokenizer_files(source.context / "hf")


def _place_data(source: Source, weights: Path, *, copy: bool) -> PlacedData:
    from conversion.layouts.data_files import copy_data, link_data

    if not copy and (linked := link_data(source.metadata, weights)):
        return linked
    require_free_space(weights, sum(chunk.place.length for entry in source.metadata.entries for chunk in entry.chunks))
    return copy_data(source.metadata, weights)


def _write_index(source: Source, data: PlacedData, weights: Path, common: dict[str, Any], *, prefix: str) -> None:
    from dataclasses import replace

    import torch

    from conversion.formats.dist_metadata import BACKEND, BACKEND_NAME, COMMON_NAME, write_dist_metadata

    old = source.metadata.prefix
    entries = [replace(entry, key=prefix + entry.key.removeprefix(old)) for entry in data.entries]
    write_dist_metadata(weights, entries, {prefix + key.removeprefix(old): place for key, place in data.objects.items()})
    torch.save(common, weights / COMMON_NAME)
    (weights / BACKEND_NAME).write_text(json.dumps(BACKEND), encoding="utf-8")


def _write_trackers(source: Source, staging: Path, folder: Path, layout: str, run_config: dict[str, Any] | None) -> None:
    """What tells the program which checkpoint is the newest, and Megatron-Bridge what the model is."""
    from conversion.inspection.places import BRIDGE_TRACKER, ITERATION_TRACKER, RUN_CONFIG, TRAIN_STATE

    if layout == NEMO:
        return
    (staging / ITERATION_TRACKER).write_text(folder.name.removeprefix("iter_").lstrip("0") or "0", encoding="utf-8")
    if run_config is None:
        return
    import torch
    import yaml

    from conversion.layouts.megatron_bridge import train_state

    (folder / RUN_CONFIG).write_text(yaml.safe_dump(run_config, sort_keys=False), encoding="utf-8")
    for path in (folder / TRAIN_STATE, staging / BRIDGE_TRACKER):
        torch.save(train_state(step=source.step, samples=source.samples), path)
    if _tokenizer_files(source):
        from data_prep.tokenizers.files import read_tokenizer_files, write_tokenizer_files

        (folder / "tokenizer").mkdir()
        write_tokenizer_files(folder / "tokenizer", read_tokenizer_files(source.context / "hf"))


def _facts(source: Source, manifest: Manifest | None, layout: str, data: PlacedData) -> dict[str, Any]:
    # Of a checkpoint that another program has trained, the context knows which tokenizer it is for, and how its rows were made.
    from conversion.layouts.megatron_lm import not_expressible

    known = manifest or read_manifest(source.context.parent)
    return {
        **(known.facts if known else {}),
        "model_type": source.family,
        "vocab_size": source.config["vocab_size"],
        "tie_word_embeddings": source.config["share_embeddings_and_output_weights"],
        "step": source.step,
        "layout": layout,
        "linked_files": len(data.linked),
        "not_expressible": not_expressible(source.config) if layout == MEGATRON_LM else [],
    }


def _digests(source: Source, manifest: Manifest | None, staging: Path, weights: Path, data: PlacedData) -> dict[str, str]:
    """Digests of the new files; of a linked one that of the old manifest, since it may be too large to be read."""
    digests = {}
    for path in staging.rglob("*"):
        name = path.relative_to(staging).as_posix()
        if path.parent == weights and path.name in data.linked:
            old_name = (source.metadata.directory / path.name).relative_to(source.manifest_dir).as_posix()
            record = manifest.files.get(old_name) if manifest else None
            if record is not None and record.digest is not None:
                digests[name] = record.digest
        elif path.is_file():
            digests[name] = digest_file(path)
    return digests
