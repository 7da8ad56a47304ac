"""The judgement of a trial of training: from what `slurm.checks.trial` found to findings."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from slurm.checks.findings import NOT_APPLICABLE, OK, PROBLEM, Finding
from slurm.checks.trial import PARTS, STEPS

# bf16 has 8 bits, and losses of a processor are in float32: a loss of 7 differs by a few thousandths, a wrong mask or sum by tenths.
LARGEST_DIFFERENCE = 0.05
LARGEST_ATTENTION_DIFFERENCE = 0.05  # of outputs around 1, whose bf16 is 0.004 apart
_SLOWEST = 0.8  # of the fastest GPU of a node
_FLASH = ((2, 1, 1), (2, 8, 1))  # what TransformerEngine takes for documents on an A100


def judge_trial(found: Mapping[str, Any]) -> list[Finding]:
    """All findings of a trial, those of parts that it did not come to among them."""
    findings = []
    for name in PARTS:
        part = found.get(name)
        if part is None:
            findings.append(Finding(name, PROBLEM, "the job ended before", "see the log; give it more time with --time"))
        elif "error" in part:
            findings.append(Finding(name, PROBLEM, str(part["error"]), "see the log"))
        elif "absent" in part:
            findings.append(Finding(name, NOT_APPLICABLE, str(part["absent"])))
        elif name in _JUDGES:
            findings += _JUDGES[name](part)
    return findings


def _engine(part: Mapping[str, Any]) -> list[Finding]:
    packages = ", ".join(f"{name} {version}" for name, version in part["packages"].items())
    findings = [Finding("engine", OK, f"imported in {part['seconds']:g} s: {packages}")]
    version = part["packages"].get("flash-attn")
    if version is not None and not _FLASH[0] <= _numbers(version) <= _FLASH[1]:
        expected = " to ".join(".".join(map(str, bound)) for bound in _FLASH)
        message = f"{version}; TransformerEngine takes {expected} for documents on an A100"
        findings.append(Finding("flash-attention", PROBLEM, message, "install one of them"))
    kernels = {name: value for name, value in part["environment"].items() if name.startswith("NVTE_")}
    if kernels:
        message = ", ".join(f"{name}={value}" for name, value in kernels.items())
        findings.append(Finding("NVTE variables", OK, f"the site sets {message}, which selects TransformerEngine's kernels"))
    return findings


def _caches(part: Mapping[str, Any]) -> list[Finding]:
    shared = {name: place for name, place in part.items() if place["is shared"]}
    if shared:
        message = "; ".join(f"{name} is {place['path']}, on {place['file system']}" for name, place in shared.items())
        advice = "set the variable to a directory on the node's own disk in the cluster file's environment"
        return [Finding("compile caches", PROBLEM, message, advice)]
    return [Finding("compile caches", OK, "; ".join(f"{place['path']} on {place['file system']}" for place in part.values()))]


def _speeds(part: Mapping[str, Any]) -> list[Finding]:
    findings = []
    for name, measured in part.items():
        if not measured:
            continue
        fastest = max(measured.values())
        slow = {place: value for place, value in measured.items() if value < _SLOWEST * fastest}
        message = ", ".join(f"{place} {value:g}" for place, value in measured.items())
        if slow and name == "TFLOP/s":
            findings.append(Finding(name, PROBLEM, message, f"{', '.join(slow)} is slower than the others: exclude the node"))
        elif slow:
            findings.append(Finding(name, OK, f"{message}; {', '.join(slow)} is slower than the others, as when GPU links differ"))
        else:
            findings.append(Finding(name, OK, message))
    return findings


def _attention(part: Mapping[str, Any]) -> list[Finding]:
    finding = partial(Finding, "attention of documents")
    findings = []
    for case, value in part.items():
        if isinstance(value, str):
            findings.append(finding(PROBLEM, f"{case}: {value}", "train such models with data.document_mask=false"))
        elif value > LARGEST_ATTENTION_DIFFERENCE:
            message = f"{case}: {value:g} from the formula; expected at most {LARGEST_ATTENTION_DIFFERENCE:g}"
            findings.append(finding(PROBLEM, message, "report it; NVTE_FUSED_ATTN=0 or NVTE_FLASH_ATTN=0 may select a correct kernel"))
        else:
            findings.append(finding(OK, f"{case}: {value:g} from the formula"))
    return findings


def _training(part: Mapping[str, Any]) -> list[Finding]:
    losses, plain = part["losses"], part["losses of a processor"]
    findings = []
    if len(losses) < STEPS or len(plain) < STEPS:
        findings.append(Finding("training", PROBLEM, f"{len(losses)} and {len(plain)} of {STEPS} steps were taken", "see the log"))
    else:
        furthest = max(abs(losses[step] - plain[step]) for step in plain)
        message = f"killed and resumed, losses differ by at most {furthest:.2g} from those of one process in {STEPS} steps"
        if not part["was killed"]:
            findings.append(Finding("training", PROBLEM, "the run ended before it could be killed", "run it again"))
        elif furthest > LARGEST_DIFFERENCE:
            findings.append(
                Finding("training", PROBLEM, f"{message}; expected {LARGEST_DIFFERENCE:g}", "do not train on this node; report it")
            )
        else:
            findings.append(Finding("training", OK, message))
    for memory in part["memory"]:
        if "reserved_gib" in memory:
            message = f"{memory['memory_gib']:.2f} GiB allocated, {memory['reserved_gib']:.2f} reserved, with expandable_segments"
            findings.append(Finding("memory", OK, message))
    return findings


def _hang(part: Mapping[str, Any]) -> list[Finding]:
    message = f"the run ended {part['seconds']:g} s after a rank had stopped, with exit code {part['exit code']}"
    if part["exit code"] == part["expected"] and part["says that it hangs"]:
        return [Finding("a rank that hangs", OK, message)]
    wrong = f"{message}; expected {part['expected']}, by the watchdog"
    return [Finding("a rank that hangs", PROBLEM, wrong, "see the log of the run `hanging`")]


_JUDGES = {
    "engine": _engine,
    "compile caches": _caches,
    "products and copies": _speeds,
    "attention of documents": _attention,
    "training": _training,
    "a rank that hangs": _hang,
}


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int("".join(filter(str.isdigit, part)) or 0) for part in version.split("+")[0].split(".")[:3])
