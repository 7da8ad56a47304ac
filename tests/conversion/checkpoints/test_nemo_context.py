"""The files for NeMo's own loading, as text; that NeMo loads them is shown in `test_engine`."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from conversion.checkpoints.nemo_context import write_context
from conversion.families import FAMILIES
from tests.conversion.conftest import OPTMaker
from tests.conversion.tiny_families import PUBLISHED
from tests.processes import ROOT, Group


def test_published_mistral(tmp_path: Path) -> None:
    (tmp_path / "hf").mkdir()
    config = FAMILIES["mistral"].megatron_config(PUBLISHED["mistral-7b"], tied=False, source="x")
    write_context(tmp_path, FAMILIES["mistral"], config, hf_dtype="bfloat16")
    described = yaml.safe_load((tmp_path / "model.yaml").read_text())
    assert described["_target_"] == "nemo.collections.llm.gpt.model.mistral.MistralModel"
    assert described["tokenizer"] is None
    fields = {"seq_length": 32768, "window_size": [4095, 0], "bf16": True, "fp16": False, "vocab_size": 32000, "rotary_base": 10000.0}
    fields |= {
        "params_dtype": {"_call_": False, "_target_": "torch.bfloat16"},
        "_target_": "nemo.collections.llm.gpt.model.mistral.MistralConfig7B",
    }
    assert {key: described["config"][key] for key in fields} == fields
    json.loads((tmp_path / "io.json").read_text())


def test_opt_says_what_it_needs(tmp_path: Path) -> None:
    (tmp_path / "hf").mkdir()
    write_context(tmp_path, FAMILIES["opt"], {"num_layers": 2}, hf_dtype="float16")
    text = (tmp_path / "model.yaml").read_text()
    assert text.startswith("# NeMo has no opt: this needs the directory nemo_patches of Scion on PYTHONPATH.\n")
    assert yaml.safe_load(text)["config"] == {"_target_": "nemo_patches.opt_model.opt_config", "model": {"num_layers": 2}}
    assert "nemo_patches" in (tmp_path / "io.json").read_text()


def test_conversion_imports_neither_nemo_nor_torch(make_opt: OPTMaker, tmp_path: Path) -> None:
    """Both ways, with a tokenizer, in a process like that of the command; importing torch takes longer than a gigabyte."""
    code = (
        "import sys; from pathlib import Path; from conversion import hf_to_nemo, nemo_to_hf, families;"
        "from data_prep.tokenizers.files import start_without_torch; start_without_torch(); hf, nemo, back = map(Path, sys.argv[1:]);"
        "hf_to_nemo.convert(hf, nemo); nemo_to_hf.export(nemo, back); print(len(families.FAMILIES),"
        "[name for name in ('torch', 'nemo', 'megatron', 'fiddle', 'lightning') if name in sys.modules])"
    )
    folders = [str(make_opt()), str(tmp_path / "nemo"), str(tmp_path / "back")]
    finished = Group(["-c", code, *folders], log_dir=tmp_path / "logs").wait(timeout_seconds=60)
    assert finished.stdout == f"{len(FAMILIES)} []\n", (finished.stderr, ROOT)
