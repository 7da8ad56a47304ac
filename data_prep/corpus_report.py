"""Report on cleaned corpora: documents kept and removed by reason with samples, lengths, sites, languages and quality by source.

Reads an output of `clean`, and with --dedup an output of `dedup` for the duplicates between the corpora.  --compare shows two runs side by side.
The page needs no network.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from common import command
from common.artifacts import Manifest, staged_directory, write_manifest
from common.options import add_option
from data_prep.cleaning.corpus_figures import duplicates_between, figures_of, kept_by_one, page, require_stage, settings_name


def _parser() -> argparse.ArgumentParser:
    parser = command.parser(
        __doc__, example="python -m data_prep.corpus_report --clean cleaned/ --dedup unique/ --compare cleaned-standard/ --output page/"
    )
    add_option(parser, "--clean DIR", "output of data_prep.clean", type=Path, required=True)
    add_option(parser, "--dedup DIR", "output of data_prep.dedup for the same corpora", type=Path)
    add_option(parser, "--compare DIR", "another output of data_prep.clean for the same texts, to compare with", type=Path)
    add_option(parser, "--text-key", "key of the text in a .jsonl line", "text")
    add_option(parser, "--url-key", "key of the URL in a .jsonl line", "url")
    add_option(parser, "--output DIR", "new directory, for report.html", type=Path, required=True)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page."""
    arguments = _parser().parse_args(argv)
    inputs = {"--clean": arguments.clean, "--dedup": arguments.dedup, "--compare": arguments.compare}
    stages = {name: "data_prep.dedup" if name == "--dedup" else "data_prep.clean" for name in inputs}
    manifests = {name: require_stage(directory, stages[name]) for name, directory in inputs.items() if directory is not None}
    other = manifests.get("--compare")
    kept = kept_by_one(arguments.clean, arguments.compare) if arguments.compare else None
    if other is not None and kept is not None:
        _require_same_texts(manifests["--clean"], other, kept, arguments.compare)
    if (deduplicated := manifests.get("--dedup")) is not None:
        _require_same_corpora(manifests["--clean"], deduplicated, arguments.dedup)
    with staged_directory(arguments.output) as staging:
        written = page(
            figures_of(arguments.clean, arguments.text_key, arguments.url_key),
            filters=settings_name(arguments.clean),
            duplicates=duplicates_between(arguments.dedup) if arguments.dedup else (),
            others=other.facts["counts"] if other else None,
            kept_by_one=kept,
            other_name=arguments.compare.name if arguments.compare else "",
        )
        (staging / "report.html").write_text(written, encoding="utf-8")
        write_manifest(
            staging,
            stage="data_prep.corpus_report",
            facts={"corpora": list(manifests["--clean"].facts["counts"])},
            arguments=vars(arguments),
            inputs={str(inputs[name]): manifest.digest for name, manifest in manifests.items()},
        )
    print(f"{arguments.output / 'report.html'}")
    return command.DONE


def _require_same_texts(first: Manifest, other: Manifest, kept: Mapping[str, tuple[int, int, int]], directory: Path) -> None:
    """Refuse to compare runs that have neither a file nor a kept id in common."""
    if not set(first.inputs.values()) & set(other.inputs.values()) and not any(both for both, _, _ in kept.values()):
        raise ValueError(
            f"--compare {directory} is a run over other texts, no file and no id of which this run has; give one over the same"
        )


def _require_same_corpora(cleaned: Manifest, deduplicated: Manifest, directory: Path) -> None:
    """Refuse duplicates of corpora that were not cleaned here, none of which the page would show."""
    names, others = sorted(cleaned.facts["counts"]), list(deduplicated.facts["corpora"])
    if not set(names) & set(others):
        raise ValueError(
            f"--dedup {directory} is of the corpora {', '.join(others)}, none of which --clean has ({', '.join(names)}); give one of the same"
        )


if __name__ == "__main__":
    command.run(main)
