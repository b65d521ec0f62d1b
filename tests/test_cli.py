"""The command line: what goes to stdout, to stderr and into files, and the exit codes."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from handmade import Builder

import traceflow
from traceflow.analyzers.summary import SteadyState
from traceflow.cli import forms, main, progress
from traceflow.cli.options import Options
from traceflow.cli.output import refuse_existing
from traceflow.cli.report import report_name
from traceflow.errors import TraceflowError
from traceflow.run import Run
from traceflow.trace.model import Kind

Capture = pytest.CaptureFixture[str]

VERBS = {
    "summary": ("show", "summary"),
    "critical-path": ("show", "critical-path"),
    "communication": ("show", "communication"),
    "what-if": ("what-if", "--scale", "gemm=0.5"),
}


def kineto(*, steps: int = 1) -> dict[str, Any]:
    """One rank that launches a kernel of 100 us in every step, 5 us after the launch call began."""
    rows: list[dict[str, Any]] = []
    for step in range(steps):
        at, correlation = 1_000 + 200 * step, step + 1
        rows += [
            event("user_annotation", f"ProfilerStep#{step}", 40, 40, at, 150),
            event("cpu_op", "aten::mm", 40, 40, at, 20, {"External id": correlation}),
            event("cuda_runtime", "cudaLaunchKernel", 40, 40, at + 2, 3, {"correlation": correlation}),
            event("kernel", "gemm", 0, 7, at + 7, 100, {"correlation": correlation, "device": 0, "stream": 7}),
        ]
    about = {"rank": 0, "world_size": 1, "backend": "nccl"}
    return {"schemaVersion": 1, "distributedInfo": about, "baseTimeNanoseconds": 10**18, "traceEvents": rows}


def event(category: str, name: str, pid: int, tid: int, ts: int, dur: int, args: Any = None) -> dict[str, Any]:
    """A complete event of a Kineto trace; times in us."""
    return {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args or {}}


@pytest.fixture
def trace(tmp_path: Path) -> str:
    """A trace file of two steps."""
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps(kineto(steps=2)))
    return str(path)


def asked(verb: str, trace: str, *options: str) -> list[str]:
    """The arguments that put one question to a trace."""
    return [*VERBS[verb], trace, *options]


def test_help_lists_the_verbs(capsys: Capture) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert {"demo", "report", "show", "what-if", "explain"} <= {line.split()[0] for line in out.splitlines() if line}
    assert main(["show", "--help"]) == 0
    assert {"summary", "critical-path", "communication"} <= set(capsys.readouterr().out.split())


@pytest.mark.parametrize("verb", [*VERBS.values(), ("report",), ("demo",)])
def test_every_verb_shares_the_common_options(verb: tuple[str, ...], capsys: Capture) -> None:
    assert main([*verb[:2], "--help"] if verb[0] == "show" else [verb[0], "--help"]) == 0
    assert {"--output", "--force", "--quiet", "--debug", "--no-color"} <= set(
        capsys.readouterr().out.replace(",", "").split()
    )


def test_the_version(capsys: Capture) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"traceflow {traceflow.__version__}\n"


@pytest.mark.parametrize("verb", VERBS)
def test_json_is_one_object_and_nothing_else(verb: str, trace: str, capsys: Capture) -> None:
    assert main(asked(verb, trace, "--format", "json")) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert captured.err == ""
    assert captured.out.count("\n") == 1
    assert (document["schema_version"], document["kind"], document["inputs"]) == (1, verb, [trace])
    assert document["epoch"] == "2001-09-09T01:46:40.001000000Z"


@pytest.mark.parametrize("verb", VERBS)
def test_text_names_the_input_and_the_evidence(verb: str, trace: str, capsys: Capture) -> None:
    assert main(asked(verb, trace)) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert Path(trace).name in captured.out.replace("\n", "")
    assert "Evidence: " in captured.out
    assert "\x1b" not in captured.out


def test_a_step_is_the_window(trace: str, capsys: Capture) -> None:
    assert main(asked("critical-path", trace, "--step", "1", "--format", "json")) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["request"] == {"step": 1, "window": None}
    assert document["result"]["window"] == {"start_ns": 200_000, "end_ns": 307_000}
    assert document["result"]["by_kind_ns"] == {"compute": 100_000, "launch": 5_000, "host": 2_000}


def test_what_would_change_is_told(trace: str, capsys: Capture) -> None:
    options = ["--scale", "a=b=2", "--scale", "gemm=0.5", "--drop", "x=1", "--rank", "0", "--format", "json"]
    assert main(["what-if", trace, *options]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["request"] == {
        "step": None,
        "window": None,
        "scale": ["a=b=2", "gemm=0.5"],
        "drop": ["x=1"],
        "rank": [0],
    }
    result = document["result"]
    assert result["saved_ns"] == 50_000
    assert result["baseline_ns"] - result["predicted_ns"] == result["saved_ns"]


def test_nothing_changed_predicts_what_was_measured(trace: str, capsys: Capture) -> None:
    assert main(["what-if", trace, "--format", "json"]) == 0
    result = json.loads(capsys.readouterr().out)["result"]
    assert (result["saved_ns"], result["exact"]) == (0, True)


def test_top_limits_the_rows(trace: str, capsys: Capture) -> None:
    assert main(asked("critical-path", trace, "--top", "1")) == 0
    assert "shorter ones, together" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["shwo", "summary"],
        ["run.json"],
        ["show", "weather", "run.json"],
        ["show", "summary"],
        ["show", "summary", "a", "b"],
        ["show", "critical-path", "a", "--step", "one"],
        ["show", "critical-path", "a", "--format", "yaml"],
        ["show", "critical-path", "a", "--top", "0"],
        ["what-if", "a", "--scale", "gemm"],
        ["what-if", "a", "--scale", "=2"],
        ["what-if", "a", "--scale", "gemm=fast"],
        ["explain", "TF"],
        ["report"],
    ],
)
def test_usage_errors_end_with_2(arguments: list[str], capsys: Capture) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert "Traceback" not in captured.out + captured.err
    assert "Usage: traceflow" in captured.out + captured.err


def empty_folder(folder: Path) -> Path:
    (folder / "empty").mkdir()
    return folder / "empty"


def folder_of_notes(folder: Path) -> Path:
    (folder / "notes").mkdir()
    (folder / "notes" / "read.me").write_text("nothing to see")
    return folder / "notes"


def cut_gzip(folder: Path) -> Path:
    packed = gzip.compress(json.dumps(kineto()).encode())
    (folder / "cut.json.gz").write_bytes(packed[: len(packed) // 2])
    return folder / "cut.json.gz"


def garbage(folder: Path) -> Path:
    (folder / "garbage.json").write_bytes(bytes(range(256)) * 40)
    return folder / "garbage.json"


def of_size_0(folder: Path) -> Path:
    (folder / "empty.json").touch()
    return folder / "empty.json"


def no_events(folder: Path) -> Path:
    (folder / "none.json").write_text(json.dumps({**kineto(), "traceEvents": []}))
    return folder / "none.json"


def missing(folder: Path) -> Path:
    return folder / "no such\nfile.json"


@pytest.mark.parametrize("verb", [*VERBS, "report"])
@pytest.mark.parametrize("make", [missing, of_size_0, empty_folder, folder_of_notes, cut_gzip, garbage, no_events])
def test_bad_input_is_refused_in_one_line(
    make: Callable[[Path], Path], verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["report", str(make(tmp_path))] if verb == "report" else asked(verb, str(make(tmp_path)))
    assert main(arguments) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: TF10")
    assert captured.err.count("\n") == 1
    assert list(tmp_path.glob("*.html")) == []


def test_a_corrupt_xspace_is_refused_in_one_line(corpus: Callable[[str], Path], capsys: Capture) -> None:
    assert main(["show", "summary", str(corpus("xplane/corrupt_tpu.xplane.pb"))]) == 1
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert captured.err.startswith("error: TF1")


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--step", "7"], "TF111"),
        (["--scale", "(=2"], "TF112"),
        (["--scale", "gemm=-1"], "TF112"),
        (["--drop", "@nothing"], "TF112"),
    ],
)
def test_a_request_that_cannot_be_met_is_refused_in_one_line(
    options: list[str], code: str, trace: str, capsys: Capture
) -> None:
    assert main(["what-if", trace, *options]) == 1
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert captured.err.startswith(f"error: {code}: ")


def test_debug_shows_the_traceback(capsys: Capture) -> None:
    assert main(["show", "summary", "missing.json", "--debug"]) == 1
    captured = capsys.readouterr()
    assert "Traceback" in captured.err
    assert captured.err.splitlines()[-1].startswith("error: TF101: ")


def fails(error: BaseException) -> Callable[..., Any]:
    """A function that raises."""

    def fail(*_arguments: object) -> Any:
        raise error

    return fail


def test_a_bug_is_called_one(trace: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr(Run, "summary", fails(ZeroDivisionError("division\nby zero")))
    assert main(["show", "summary", trace]) == 1
    said = "error: TF900: ZeroDivisionError: division\\nby zero: this is a bug in traceflow"
    assert capsys.readouterr().err == f"{said}; run with --debug for the traceback\n"
    assert main(["show", "summary", trace, "--debug"]) == 1
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.endswith(f"{said}\n")


def test_an_interruption_is_silent(trace: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr(Run, "summary", fails(KeyboardInterrupt()))
    assert main(["show", "summary", trace]) == 130
    assert capsys.readouterr() == ("", "")


def test_output_goes_to_a_file_which_is_never_replaced_unasked(trace: str, tmp_path: Path, capsys: Capture) -> None:
    output = tmp_path / "path.json"
    arguments = asked("critical-path", trace, "--format", "json", "-o", str(output))
    assert main(arguments) == 0
    assert capsys.readouterr() == ("", "")
    assert json.loads(output.read_text())["kind"] == "critical-path"
    output.write_text("mine")
    assert main(arguments) == 1
    assert capsys.readouterr().err.startswith("error: TF110: ")
    assert output.read_text() == "mine"
    assert main([*arguments, "-f"]) == 0
    assert json.loads(output.read_text())["kind"] == "critical-path"


def test_a_dash_is_stdout(trace: str, capsys: Capture) -> None:
    assert main(asked("summary", trace)) == 0
    plain = capsys.readouterr().out
    assert main(asked("summary", trace, "-o", "-")) == 0
    assert capsys.readouterr().out == plain


def test_an_output_without_a_folder_is_refused(trace: str, tmp_path: Path, capsys: Capture) -> None:
    assert main(asked("summary", trace, "-o", str(tmp_path / "no" / "where"))) == 1
    assert capsys.readouterr().err.startswith("error: TF114: ")
    assert main(asked("summary", trace, "-f", "-o", str(tmp_path))) == 1
    assert capsys.readouterr().err.startswith("error: TF110: ")


def test_a_report_is_named_after_its_input(
    trace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report", trace]) == 0
    assert capsys.readouterr() == ("Wrote traceflow-report-rank0.html\n", "")
    page = (tmp_path / "traceflow-report-rank0.html").read_text()
    assert page.startswith("<!doctype html>")
    assert main(["report", trace]) == 1
    assert capsys.readouterr().err.startswith("error: TF110: ")
    assert main(["report", trace, "-f"]) == 0
    capsys.readouterr()
    assert main(["report", trace, "-o", "-"]) == 0
    assert capsys.readouterr().out == page


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("runs/a", "a"),
        ("runs/a/", "a"),
        ("rank3.pt.trace.json.gz", "rank3"),
        ("host.xplane.pb", "host"),
        ("runs/*.json", "runs"),
        ("/", "capture"),
        ("json", "json"),
    ],
)
def test_the_name_of_a_report(source: str, name: str) -> None:
    assert report_name(source) == f"traceflow-report-{name}.html"


def test_explain(capsys: Capture) -> None:
    assert main(["explain", "tf201"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("TF201: exposed communication\n\n")
    assert "What to do: " in out


def run_apart(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    """The command in a process of its own."""
    script = "import sys; from traceflow.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **options)


def test_a_reader_that_has_seen_enough_is_no_error(trace: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    process = run_apart("show", "critical-path", trace, "--format", "json", stdout=writing)
    os.close(writing)
    assert process.communicate(timeout=60)[1] == ""
    assert process.returncode == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_is_told_in_one_line(trace: str) -> None:
    with Path("/dev/full").open("w") as full:
        process = run_apart("show", "summary", trace, stdout=full)
        assert process.communicate(timeout=60)[1].startswith("error: TF114: cannot write -: No space left")
    assert process.returncode == 1


def test_a_name_that_the_terminal_cannot_encode_is_escaped(trace: str) -> None:
    Path(trace).write_text(Path(trace).read_text().replace("gemm", "gemm é"))
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    process = run_apart("show", "critical-path", trace, stdout=subprocess.PIPE, env=environment)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert "gemm \\xe9" in out


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def interactive(monkeypatch: pytest.MonkeyPatch, *, patience_s: float) -> Terminal:
    """Make stderr a terminal, outside CI, whose user waits that long before progress is shown."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr(progress, "PATIENCE_S", patience_s)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    return terminal


def test_long_work_shows_progress_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = interactive(monkeypatch, patience_s=0)
    with progress.working("reading [a]", Options()):
        for _ in range(1_000):
            if "reading [a]" in terminal.getvalue():
                break
            time.sleep(0.01)
    assert "reading [a]" in terminal.getvalue()


def test_short_work_shows_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = interactive(monkeypatch, patience_s=3_600)
    with progress.working("reading", Options()):
        assert any(isinstance(thread, threading.Timer) for thread in threading.enumerate())
    assert terminal.getvalue() == ""


@pytest.mark.parametrize("silenced", ["quiet", "CI", "file"])
def test_progress_is_not_shown_where_nobody_looks(silenced: str, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = interactive(monkeypatch, patience_s=0)
    if silenced == "CI":
        monkeypatch.setenv("CI", "true")
    if silenced == "file":
        monkeypatch.setattr(terminal, "isatty", lambda: False)
    with progress.working("reading", Options(quiet=silenced == "quiet")):
        assert not any(isinstance(thread, threading.Timer) for thread in threading.enumerate())
    assert terminal.getvalue() == ""


def form(name: str, durations_ns: tuple[int, int, int], hidden_ns: int) -> forms.Form:
    """A form with steps of the given median, minimum and maximum, and 20 us of communication."""
    build = Builder()
    one, other = build.lane(0, "a", 0), build.lane(0, "b", 1)
    compute = build.lane(0, "c", 0), build.lane(0, "d", 1)
    build.collective([one, other], [10_000, 10_000], 30_000, "gather", 64)
    for lane in compute:
        build.event(lane, 0, 10_000 + hidden_ns, "multiply", Kind.COMPUTE)
    run = build.run(name)
    steady = SteadyState(5, *durations_ns)
    return forms.Form(replace(run.summary(), steady_state=steady), 2, run.critical_path(), run.communication())


@pytest.mark.parametrize(
    ("ring_ns", "said"),
    [
        (
            (80_000, 70_000, 89_000),
            "ring is faster than gather, 80.00 against 100.00 us: its slowest step took less",
        ),
        (
            (80_000, 70_000, 95_000),
            "Between ring and gather, 80.00 against 100.00 us, no difference shows: the times of their steps overlap",
        ),
        (
            (130_000, 120_000, 140_000),
            "gather is faster than ring, 100.00 against 130.00 us: its slowest step took less",
        ),
    ],
)
def test_the_verdict_of_the_demo(ring_ns: tuple[int, int, int], said: str) -> None:
    both = {"gather": form("gather", (100_000, 95_000, 110_000), 0), "ring": form("ring", ring_ns, 5_000)}
    text = forms.compared([(forms.PRODUCT, both)], devices=8, width=1_000, color=False)
    assert said in text
    assert "Experts" not in text
    assert "0.0 % in gather and 25.0 % in ring was hidden behind computation" in text
    assert "These 8 devices are simulated" in text
    assert "no evidence about accelerators" in text


def test_the_demo_tells_what_speed_cost() -> None:
    lean, wasteful = form("capacity", (10_000, 9_000, 11_000), 0), form("masked", (90_000, 80_000, 99_000), 5_000)
    both = {
        "capacity": replace(lean, routed=forms.Routed(rows=2_560, assigned=2_048, dropped=250)),
        "masked": replace(wasteful, routed=forms.Routed(rows=16_384, assigned=2_048, dropped=0)),
    }
    text = forms.compared([(forms.EXPERTS, both)], devices=8, width=1_000, color=False)
    multiplied = "2,560 rows in capacity (250 of 2,048 assignments dropped) and 16,384 rows in masked (nothing dropped)"
    assert f"Experts multiplied {multiplied}." in text
    assert ["capacity", "10.000", "20.000", "20.000", "0.000"] in [line.split() for line in text.splitlines()]


def test_the_demo_tells_how_much_of_a_path_nothing_explains() -> None:
    both = {}
    for name, start_ns in {"capacity": 63_000, "masked": 90_000}.items():
        build = Builder()
        lane = build.lane(0, "a", 0)
        build.event(lane, 0, 60_000, "one", Kind.COMPUTE)
        build.event(lane, start_ns, 100_000, "other", Kind.COMPUTE)
        both[name] = replace(form(name, (10_000, 9_000, 11_000), 0), path=build.run(name).critical_path())
    text = forms.compared([(forms.EXPERTS, both)], devices=8, width=1_000, color=False)
    assert "For part of the critical path (30.0 % in masked) an operation had its operands and waited" in text
    lean = dict.fromkeys(both, both["capacity"])
    assert "its operands" not in forms.compared([(forms.EXPERTS, lean)], devices=8, width=1_000, color=False)


@pytest.mark.parametrize(("framework", "told", "more"), [("jax", "JAX", []), ("torch", "PyTorch", ["--torch"])])
def test_the_demo_needs_its_framework(
    framework: str, told: str, more: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setitem(sys.modules, framework, None)
    assert main(["demo", *more, "-o", str(tmp_path / "demo")]) == 1
    assert capsys.readouterr().err.startswith(
        f"error: TF113: cannot record the demo: {told} is not installed; pip install 'traceflow-ml[{framework}]'"
    )
    assert not (tmp_path / "demo").exists()


def test_the_demo_records_explains_and_reports(tmp_path: Path, capsys: Capture) -> None:
    pytest.importorskip("jax")
    folder = tmp_path / "demo"
    assert main(["demo", "-o", str(folder)]) == 0
    out = capsys.readouterr().out
    assert {path.name for path in folder.iterdir()} == {"gather", "ring", "capacity", "masked", "report.html"}
    assert out.count("Verdict") == 2
    assert out.endswith(f"Wrote {folder / 'report.html'}\n")
    assert main(["show", "summary", str(folder / "ring"), "--format", "json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert len(summary["result"]["devices"]) == 8
    assert len(summary["result"]["steps"]) == 5
    assert "TF206" in {finding["code"] for finding in summary["findings"]}
    assert main(["demo", "-o", str(folder)]) == 1
    assert capsys.readouterr().err.startswith("error: TF110: ")


@pytest.mark.parametrize("inside", [False, True], ids=["the file", "in the folder"])
def test_an_input_is_never_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str], *, inside: bool) -> None:
    trace = tmp_path / "trace.json"
    trace.write_text('{"traceEvents": []}')
    source = tmp_path if inside else trace
    assert main(["show", "summary", str(source), "-o", str(trace), "-f"]) == 1
    assert "TF110" in capsys.readouterr().err
    assert trace.read_text() == '{"traceEvents": []}'


def test_a_report_may_lie_in_the_folder_that_it_is_about_and_be_replaced(tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    report.touch()
    refuse_existing(report, str(tmp_path), force=True)
    with pytest.raises(TraceflowError, match="TF110"):
        refuse_existing(report, str(tmp_path), force=False)
