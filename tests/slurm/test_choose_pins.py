"""What is compiled for an image is never installed over, and everything pinned comes into a layer beside it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from slurm.images.choose_pins import NEMO_ONLY, choose, normalized, problems, read_pins
from tests.processes import ROOT

IMAGES = ROOT / "slurm" / "images"
# As an image of NVIDIA's has them: names as pip lists them, versions with NVIDIA's own ends.
NVIDIA = {
    "torch": "2.9.0a0+145a3a7bda.nv25.10", "transformer-engine": "2.9.0", "transformer-engine-cu13": "2.9.0", "apex": "0.1", "triton": "3.5.0",
    "flash-attn": "2.7.4", "nvidia-modelopt": "0.39.0", "nvidia-resiliency-ext": "0.4.1", "cuda-bindings": "13.0.3", "numpy": "2.1.0",
    "megatron-core": "0.15.0", "nemo-toolkit": "2.6.0", "transformers": "4.57.1", "hydra-core": "1.3.2", "packaging": "23.0",
}  # fmt: skip
PINS = read_pins((ROOT / "requirements.txt").read_text(encoding="utf-8"))


def test_our_requirements_are_all_pins() -> None:
    assert len(PINS) > 200 and PINS["torch"] and PINS["megatron-core"] and all(normalized(name) == name for name in PINS)
    with pytest.raises(ValueError, match=r"line 2 is 'torch>=2'; expected NAME==VERSION"):
        read_pins("numpy==1.26.4\ntorch>=2\n")


def test_what_is_compiled_for_the_image_stays() -> None:
    choice = choose(PINS, NVIDIA)
    assert set(choice.kept) == {
        "torch", "transformer-engine", "transformer-engine-cu13", "apex", "triton", "flash-attn", "nvidia-modelopt", "nvidia-resiliency-ext",
        "cuda-bindings",
    }  # fmt: skip
    assert not set(choice.install) & set(choice.kept) and "torch" not in choice.install
    assert {name: choice.install[name] for name in ("megatron-core", "nemo-toolkit", "numpy", "transformers")} == {
        "megatron-core": PINS["megatron-core"],
        "nemo-toolkit": PINS["nemo-toolkit"],
        "numpy": PINS["numpy"],
        "transformers": PINS["transformers"],
    }
    assert choice.same == tuple(name for name in ("hydra-core",) if PINS[name] == NVIDIA[name])
    assert choice.install["nvidia-ml-py"] == PINS["nvidia-ml-py"] and choice.left_out == (), "what the image has not is ours"
    assert {*choice.install, *choice.same, *choice.left_out} | set(choice.kept) >= set(PINS), "no pin is forgotten"


def test_an_image_of_amd_gets_nothing_of_nemo() -> None:
    amd = {"torch": "2.9.1+rocm6.4", "megatron-core": "0.14.0", "numpy": "2.3.0", "amd-aiter": "0.1.7", "vllm": "0.12.0"}
    choice = choose(PINS, amd, without_nemo=True, keep=("megatron*", "numpy"))
    assert set(choice.kept) == set(amd)
    assert not {name for name in choice.install if name.startswith(("nemo", "nvidia", "cuda", "megatron"))}
    assert {"nemo-toolkit", "nemo-run", "cuda-bindings"} <= set(choice.left_out)
    assert "transformers" in choice.install and all(not name[:1].isspace() for name in NEMO_ONLY)
    with pytest.raises(ValueError, match=r"the image has no torch; start from one of docs/slurm\.md"):
        choose(PINS, {"numpy": "2.3.0"})


def test_the_check_finds_what_was_installed_over(tmp_path: Path) -> None:
    (tmp_path / "image.json").write_text(json.dumps({"kept": {"torch": "2.9.0"}, "install": {"numpy": "1.26.4", "nemo-toolkit": "2.7.3"}}))
    assert problems(tmp_path, {"torch": "2.9.0", "numpy": "1.26.4", "nemo-toolkit": "2.7.3"}) == []
    assert problems(tmp_path, {"torch": "2.13.0", "numpy": "2.1.0"}) == [
        "torch is 2.13.0; expected 2.9.0, the image's",
        "numpy is 2.1.0; expected 1.26.4, pinned",
        "nemo-toolkit is missing; expected 2.7.3, pinned",
    ]


# -- the layer, made for real ------------------------------------------------------------------------------------------------


def _wheel(folder: Path, name: str, version: str) -> None:
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{module}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{module}/__init__.py", f"version = {version!r}\n")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nRequires-Dist: torch>=99\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


@pytest.mark.slow
def test_the_layer_is_searched_first_and_the_image_is_left_as_it_was(tmp_path: Path) -> None:
    """An image whose Python is itself a virtual environment, with a package installed as editable; torch would be asked for anew by all others."""
    for folder in ("image_wheels", "wheels", "source", "editable/nemo_toolkit"):
        (tmp_path / folder).mkdir(parents=True)
    image = tmp_path / "image"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", image], check=True)
    [packages] = image.glob("lib/python3.*/site-packages")
    for name, version in (("torch", "2.9.0"), ("numpy", "2.1.0"), ("apex", "0.1")):
        _wheel(tmp_path / "image_wheels", name, version)
    for wheel in (tmp_path / "image_wheels").iterdir():
        zipfile.ZipFile(wheel).extractall(packages)
    (tmp_path / "editable/nemo_toolkit/__init__.py").write_text("version = '2.6.0'\n")
    (packages / "__editable__.nemo.pth").write_text(f"{tmp_path / 'editable'}\n")
    for name, version in (("numpy", "1.26.4"), ("nemo-toolkit", "2.7.3"), ("torch", "2.13.0")):
        _wheel(tmp_path / "wheels", name, version)
    for name in ("choose_pins.py", "layer.sh"):
        shutil.copy(IMAGES / name, tmp_path / "source")
    (tmp_path / "source/requirements.txt").write_text("numpy==1.26.4\nNeMo_toolkit==2.7.3\ntorch==2.13.0\n")
    before = {path: path.read_bytes() for path in packages.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    (tmp_path / "constraint.txt").write_text("numpy==2.1.0\n")
    environment = {
        **os.environ,
        "PYTHON": str(image / "bin/python"),
        "LAYER": str(tmp_path / "layer"),
        "WHEELS": str(tmp_path / "wheels"),
        "PIP_CONSTRAINT": str(tmp_path / "constraint.txt"),  # as NVIDIA's images set it
    }
    made = subprocess.run(
        ["bash", tmp_path / "source/layer.sh", tmp_path / "source"], env=environment, cwd="/", capture_output=True, text=True, timeout=300
    )
    assert made.returncode == 0, made.stdout + made.stderr
    assert (
        "kept from the image: apex 0.1, torch 2.9.0" in made.stdout
        and "all pinned packages are installed, and the image's own packages are unchanged" in made.stdout
    )
    assert {path: path.read_bytes() for path in before} == before
    code = "import torch, numpy, nemo_toolkit, apex; print(torch.version, numpy.version, nemo_toolkit.version, apex.version)"
    for python, versions in ((tmp_path / "layer/bin/python", "2.9.0 1.26.4 2.7.3 0.1"), (image / "bin/python", "2.9.0 2.1.0 2.6.0 0.1")):
        seen = subprocess.run([python, "-c", code], cwd="/", capture_output=True, text=True, timeout=60, check=True)
        assert seen.stdout.strip() == versions
    # Somebody installs another torch into the layer: the check of the image's %test finds it.
    over = [tmp_path / "layer/bin/python", "-m", "pip", "install", "--no-deps", "--quiet", "--disable-pip-version-check", "torch==2.13.0"]
    offline = {"PIP_CONSTRAINT": "", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path / "wheels")}
    subprocess.run(over, env={**environment, **offline}, cwd="/", timeout=120, check=True)
    check = [tmp_path / "layer/bin/python", tmp_path / "source/choose_pins.py", "--layer", tmp_path / "layer"]
    found = subprocess.run(check, cwd="/", capture_output=True, text=True, timeout=60)
    assert (found.returncode, found.stdout) == (1, "torch is 2.13.0; expected 2.9.0, the image's\n")


# -- the definitions ---------------------------------------------------------------------------------------------------------


def _sections(path: Path) -> dict[str, str]:
    head, *parts = re.split(r"^%(\w+)\n", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {"head": head} | dict(zip(parts[::2], parts[1::2], strict=True))


@pytest.mark.parametrize("name", ["nemo.def", "rocm.def"])
def test_a_definition_copies_what_it_runs(name: str) -> None:
    sections = _sections(IMAGES / name)
    assert set(sections) == {"head", "arguments", "files", "post", "environment", "test"}
    copied = dict(line.split() for line in sections["files"].strip().splitlines())
    assert all((ROOT / source).is_file() for source in copied)
    for section in ("post", "environment", "test"):
        subprocess.run(["bash", "-n"], input=sections[section], text=True, check=True)
        assert set(re.findall(r"/opt/scion-source/\S+", sections[section])) <= set(copied.values())
    used, given = set(re.findall(r"{{ (\w+) }}", sections["head"])), set(re.findall(r"^ +(\w+)=", sections["arguments"], re.MULTILINE))
    assert used == given


def test_the_dockerfile_does_the_same() -> None:
    text = (IMAGES / "Dockerfile").read_text(encoding="utf-8")
    [copy] = re.findall(r"^COPY (.+)$", text, re.MULTILINE)
    *sources, place = copy.split()
    assert all((ROOT / source).is_file() for source in sources) and place == "/opt/scion-source/"
    for definition in ("nemo.def", "rocm.def"):
        assert {line.split()[0] for line in _sections(IMAGES / definition)["files"].strip().splitlines()} == set(sources)
    for command in re.findall(r"^RUN (.+)$", text, re.MULTILINE):
        subprocess.run(["bash", "-n", "-c", command], check=True)


def test_shellcheck_accepts_the_script() -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed: apt-get install shellcheck")
    done = subprocess.run(["shellcheck", str(IMAGES / "layer.sh")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
