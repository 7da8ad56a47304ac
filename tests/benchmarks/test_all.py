"""The run of all benchmarks: what it measures, keeps by commit, compares and refuses."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks import all as all_benchmarks
from benchmarks.whole.case import CONTENDERS, Case, Command, Contender
from benchmarks.whole.cases import NEEDS, STAGES, cases_of
from benchmarks.whole.growing import GROWING
from benchmarks.whole.material import Material
from benchmarks.whole.page import rows_of, sections, write_page
from benchmarks.whole.results import Figure, Results, changes, read_results, results_of, write_results
from benchmarks.whole.run import figures_of
from tests.conversion.embedding_fixtures import demo_text


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.jsonl"
    path.write_text("".join(json.dumps({"text": line}) + "\n" for line in demo_text("sl").splitlines() if line))
    return path


def figure(name: str, *cpu_seconds: float, role: str = "ours", case: str = "dedup", amount: float = 10) -> Figure:
    seconds = tuple(2 * value for value in cpu_seconds)
    return Figure(case, amount, "MB of text", name, role, seconds, cpu_seconds, 1 << 30, (0.5,))  # type: ignore[arg-type]


def results(*figures: Figure, missing: Mapping[str, str] | None = None) -> Results:
    return Results("a" * 40, "a machine", 2, figures, missing or {})


def python(*lines: str) -> Command:
    """A command of these lines, in which `output` is where it may write."""
    return lambda output: [sys.executable, "-c", "\n".join([f"output = {str(output)!r}", *lines])]


@pytest.mark.slow
def test_measured_kept_shown_and_compared(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Real commands on a little text, twice; the second time beside results that were made faster by hand."""
    output = tmp_path / "costs"
    words = ["--text", str(text), "--megabytes", "0.05", "--rounds", "2", "--only", "dedup"]
    assert all_benchmarks.main([*words, "--output", str(output)]) == 0
    printed = capsys.readouterr().out
    (path,) = output.glob("*.json")
    found = read_results(path)
    assert path.stem == (found.commit or "unknown") and found.cases == ["dedup"]
    ours, limit = found.of_case("dedup")
    assert (ours.role, limit.role, len(ours.cpu_seconds), len(ours.load)) == ("ours", "limit", 2, 2) and 0.05 <= ours.amount < 0.06
    assert min(ours.cpu_seconds) > 0.1 and ours.peak_bytes > 20 << 20
    assert found.missing == {"dedup, datatrove": "not measured: --peers names no interpreter with datatrove"}
    assert re.search(rf"reading and writing zstd +\| +{limit.median_cpu / ours.median_cpu:.2f} \|", printed)  # type: ignore[operator]
    page = (output / "index.html").read_text()
    assert re.search(r"<td>Scion</td>.*<td>reading and writing zstd</td>", page, re.DOTALL) and "load " in page.split("<h2>")[0]

    faster = tmp_path / "before.json"
    write_results(replace(found, figures=(replace(ours, cpu_seconds=(0.01, 0.02)), limit)), faster)
    assert all_benchmarks.main([*words, "--output", str(output), "--against", str(faster)]) == 1
    assert re.search(r"\| dedup +\| +0\.01 \|.*\| +slower \|", capsys.readouterr().out)
    assert '<td class="slower">slower</td>' in (output / "index.html").read_text()


def test_one_that_fails_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    """In its second round; what it did in the first is kept."""
    mark = tmp_path / "mark"
    fails = python("import os, sys", f"sys.exit('out of ideas') if os.path.exists({str(mark)!r}) else open({str(mark)!r}, 'w')")
    case = Case("dedup", 1, "MB", (Contender("Scion", "ours", python("pass")), Contender("other", "peer", fails)))
    missing: dict[str, str] = {}
    ours, other = figures_of(case, rounds=3, work=tmp_path, missing=missing)
    assert (len(ours.seconds), len(other.seconds), len(other.load)) == (3, 1, 1)
    assert missing == {"dedup, other": "failed in round 2: out of ideas"}
    assert [path.name for path in tmp_path.iterdir()] == ["mark"]


def test_what_a_process_says_of_a_part_of_it(tmp_path: Path) -> None:
    stops = Contender("Scion", "ours", python("print('warning')", "print([3.5, 1.5, 2.5])"), tells_seconds=True)
    (found,) = figures_of(Case("a save", 1, "GB", (stops,), most_rounds=1), rounds=3, work=tmp_path, missing={})
    assert (found.seconds, found.cpu_seconds, found.costs) == ((3.5, 1.5, 2.5), (), (3.5, 1.5, 2.5))
    (row,) = rows_of(results(found))
    assert row[4:8] == ("", "", "2.50", "1.50, 3.50")


@pytest.mark.parametrize("fails", ["ours", "material"])
def test_a_stage_that_fails_leaves_the_next_alone(fails: str, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> Case:
        if fails == "material":
            raise ValueError("--text holds 0.1 MB, expected 9.")
        return Case("collect", 1, "MB", (Contender("Scion", "ours", python("raise SystemExit(3)")),))

    monkeypatch.setitem(STAGES, "collect", broken)
    monkeypatch.setitem(STAGES, "clean", lambda *_: Case("clean", 1, "MB", (Contender("Scion", "ours", python("pass")),)))
    words = ["--text", str(text), "--only", "clean", "collect", "--rounds", "1", "--output", str(tmp_path / "costs")]
    assert all_benchmarks.main(words) == 1
    (path,) = (tmp_path / "costs").glob("*.json")
    found = read_results(path)
    assert found.cases == ["clean"]
    (what,) = found.missing
    assert (what, "failed" in found.missing[what]) == ("collect" if fails == "material" else "collect, Scion", True)


def test_calls_at_one_commit_fill_one_file() -> None:
    earlier = results(
        figure("Scion", 1.0),
        figure("Scion", 2.0, case="clean"),
        missing={"dedup, other": "failed", "clean, other": "failed", "save": "failed"},
    )
    found = results_of([figure("Scion", 3.0)], {"dedup, new": "not measured"}, stages=["dedup"], earlier=earlier)
    assert [(kept.case, kept.cpu_seconds) for kept in found.figures] == [("clean", (2.0,)), ("dedup", (3.0,))]
    assert found.missing == {"clean, other": "failed", "save": "failed", "dedup, new": "not measured"}


def test_the_documentation_has_a_line_for_each_stage_and_a_row_for_each_contender(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "kept.json"
    rows = [figure("Scion", 1.0), figure("datatrove", 10.5, role="peer"), figure("zstd", 0.5, role="limit")]
    write_results(results(*rows, figure("import", 1.0, role="limit", case="train, one step"), missing={"save": "failed"}), path)
    assert all_benchmarks.main(["--tables", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "load 0.5 to 0.5" in printed.splitlines()[0]
    assert re.search(r"\| dedup \| +1\.00 \| +2\.00 \| +1,024 \| +datatrove 10 \| +datatrove 10 \| +zstd 0\.50 \| +zstd 0\.50 \|", printed)
    assert [line for line in printed.splitlines() if line.startswith("#")] == ["### Text", "### Training"]
    assert printed.count("\n| train, one step") == 1, "where ours failed there is nothing to compare with"
    assert printed.endswith("- save: failed.\n")


@pytest.mark.filterwarnings("error")
def test_a_stop_of_less_than_nothing_is_drawn(tmp_path: Path) -> None:
    write_page(results(figure("Scion", 2.0), figure("Scion, asynchronous", -0.01, 0.02, 0.1)), [], tmp_path / "index.html")
    assert "Scion, asynchronous" in (tmp_path / "index.html").read_text()


def test_slower_is_what_no_round_before_was() -> None:
    before = results(figure("Scion", 1.0, 1.2, 1.1))
    assert [change.is_slower for change in changes(before, results(figure("Scion", 1.19, 1.3, 1.4)))] == [False]  # a round is as fast
    assert [change.is_slower for change in changes(before, results(figure("Scion", 1.21, 1.3, 1.4)))] == [True]
    assert [change.is_slower for change in changes(before, results(figure("Scion", 2.42, 2.2, 2.3, amount=20)))] == [
        False
    ]  # twice the work
    assert changes(before, results(figure("Scion", 9.0, case="clean"))) == []


def test_ratios_are_of_medians() -> None:
    ours, peer = rows_of(results(figure("Scion", 1.0, 2.0, 9.0), figure("datatrove", 10.0, 30.0, 20.0, role="peer")))
    assert ours == ("dedup (10 MB of text)", "Scion", "", "", "2.00", "1.00, 9.00", "4.00", "2.00, 18.00", "1,024")
    assert (peer[0], *peer[2:4]) == ("", "10", "10")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--rounds", "0"], "--rounds 0 and --megabytes 0.05: expected at least one round"),
        (["--only", "harness"], "--only harness needs --model; --help says what to give"),
        (["--only", "from_gguf", "--model", "TEXT"], "--only from_gguf needs --gguf; --help says what to give"),
        (["--against", "TEXT"], "holds no results of benchmarks.all"),
        (["--text", "TEXT", "TEXT.gz"], "text.jsonl.gz does not exist; look at its spelling"),
        (["--model", "nowhere"], "--model nowhere does not exist; look at its spelling"),
        (["--source-text", "TEXT", "nowhere"], "--source-text nowhere does not exist"),
        (["--peers", "TEXT"], "text.jsonl is no program; name the interpreter of an environment that has them"),
    ],
)
def test_bad_input_is_told_before_anything_is_written(words: list[str], sentence: str, text: Path, tmp_path: Path) -> None:
    given = [
        "--text",
        str(text),
        "--megabytes",
        "0.05",
        "--output",
        str(tmp_path / "costs"),
        *(word.replace("TEXT", str(text)) for word in words),
    ]
    with pytest.raises(ValueError, match=re.escape(sentence)):
        all_benchmarks.main(given)
    assert not (tmp_path / "costs").exists()


def test_inputs_of_another_size_are_not_taken(text: Path, tmp_path: Path) -> None:
    words = ["--text", str(text), "--only", "plan", "--prepare", "--output", str(tmp_path / "costs"), "--megabytes"]
    assert all_benchmarks.main([*words, "0.05"]) == 0
    with pytest.raises(SystemExit, match=r"megabytes 0.05, now 0.1"):
        all_benchmarks.main([*words, "0.1"])


def test_too_little_text_leaves_no_half_file(text: Path, tmp_path: Path) -> None:
    from benchmarks.whole.material import write_text

    with pytest.raises(ValueError, match=r"--text holds 0\.1 MB, expected 900\.0; give more files, or a smaller --megabytes"):
        write_text(tmp_path / "out.jsonl.zst", 900_000_000, [text])
    assert [path.name for path in tmp_path.iterdir()] == ["text.jsonl"]


def test_unknown_stages_are_refused(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        all_benchmarks.main(["--text", str(text), "--output", str(tmp_path / "costs"), "--only", "dedupe"])
    assert "dedupe" in capsys.readouterr().err and not (tmp_path / "costs").exists()


def test_tables_go_between_their_marks(tmp_path: Path) -> None:
    page, kept = tmp_path / "page.md", tmp_path / "kept.json"
    write_results(results(figure("Scion", 1.0)), kept)
    page.write_text("# Costs\n\n<!-- tables of benchmarks.all -->\nold\n<!-- end of benchmarks.all -->\nrest\n")
    for _ in range(2):
        assert all_benchmarks.main(["--tables", str(kept), "--into", str(page)]) == 0
        text = page.read_text()
        assert text.startswith("# Costs\n") and text.endswith("rest\n") and "old" not in text and text.count("### Text") == 1
    page.write_text("# Costs\n")
    with pytest.raises(ValueError, match=re.escape("has no lines <!-- tables of benchmarks.all -->")):
        all_benchmarks.main(["--tables", str(kept), "--into", str(page)])


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> Material:
    """Material that is there already, by name alone."""
    material = Material(
        Path("work"),
        (Path("text"),),
        1,
        "llama-3.2-1b",
        "slv",
        Path("model"),
        Path(__file__),
        (Path("en"),),
        Path("words"),
        ("bfloat16", "float32"),
    )
    made = "documents gzipped held_out held_out_lines learned learned_source plain_dictionary tokenizer helper nemo_model checkpoint_by_nemo training saving"
    numbers = "text_megabytes held_out_kilobytes saving_gigabytes"
    material.__dict__.update({name: Path(name) for name in made.split()} | dict.fromkeys(numbers.split(), 1.0))
    monkeypatch.setattr(Material, "checkpoint", lambda self, dtype: Path(f"{self.shape}.{dtype}"))
    monkeypatch.setattr(Material, "nemo_checkpoint", lambda self, dtype: Path(f"{self.shape}.{dtype}.nemo"))
    monkeypatch.setattr(Material, "checkpoint_gigabytes", lambda self, dtype: 1.0)
    monkeypatch.setattr(Material, "target_tokenizer", lambda self, size, among: Path(f"bpe-{size}"))
    monkeypatch.setattr(Material, "held_out_of", lambda self, num_bytes: Path(f"held_out.{num_bytes}"))
    monkeypatch.setattr(Material, "text_bytes", lambda self, path: 1)
    return material


def runs(words: Sequence[str | Path]) -> bool:
    """Whether a command's program is there: a module, a file, or code; that of other interpreters is theirs to know."""
    if words[0] != sys.executable:
        return words[0] == "gzip" or (
            words[0] == "peers/python" and (words[1] == "-m" or (Path(words[1]).parent == CONTENDERS and Path(words[1]).is_file()))
        )
    return find_spec(str(words[2])) is not None if words[1] == "-m" else words[1] == "-c" or Path(words[1]).is_file()


def test_every_stage_has_ours_first_and_somebody_beside_it(named: Material) -> None:
    for stage in STAGES:
        cases = cases_of(stage, named, "peers/python")
        assert cases and len({case.name for case in cases}) == len(cases)
        for case in cases:
            first, *others = case.contenders
            assert (first.name, first.role) == ("Scion", "ours") and others, case.name
            assert len({contender.name for contender in case.contenders}) == len(case.contenders)
            for contender in case.contenders:
                assert runs(contender.command(Path("out"))), (case.name, contender.name)
    assert {stage for stages in NEEDS.values() for stage in stages} <= set(STAGES)


def test_every_case_has_a_section(named: Material) -> None:
    names = [case.name for stage in STAGES for case in cases_of(stage, named, "peers/python")]
    found = results(*(figure("Scion", 1.0, case=name) for name in names))
    assert "Others" not in dict(sections(found)) and [case for _, cases in sections(found) for case in cases] == names


def test_stages_that_grow_have_three_sizes(named: Material) -> None:
    for stage in GROWING.values():
        cases = list(stage.cases(named))
        assert len(cases) == 3 and all(case.name == stage.name and runs(case.contenders[0].command(Path("out"))) for case in cases)
        assert len({str(case.contenders[0].command(Path("out"))) for case in cases}) == 3
