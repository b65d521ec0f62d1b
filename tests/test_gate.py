"""Gates: what a name means, what passes, what is written, and the exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from inspect import signature
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from handmade import two_cards, two_rounds
from sources import ROOT
from test_comparison import kineto

import traceflow as tf
from traceflow.analyzers.gate import read_requirement
from traceflow.analyzers.quantities import _paths, path_of
from traceflow.asking import check
from traceflow.cli import main
from traceflow.errors import TraceflowError
from traceflow.expression import ExpressionError
from traceflow.pytest_plugin import Checked
from traceflow.report.gates import gates_as_junit, gates_as_markdown
from traceflow.run import Run

Capture = pytest.CaptureFixture[str]


# ---- names ----


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("exposed_share", "communication.per_participant.exposed_share"),
        ("communication.exposed_ns", "communication.per_participant.exposed_ns"),
        ("live_peak_bytes", "memory.programs.live_peak_bytes"),
        ("makespan_ns", "critical_path.makespan_ns"),
        ("step_ns", "summary.steady_state.median_ns"),
        ("by_kind_ns.idle", "critical_path.by_kind_ns.idle"),
        ("removable.transfer_ns", "communication.removable.transfer_ns"),
        ("residual_ns", "clocks.residual_ns"),
        ("participants.wait_ns", "communication.collectives.participants.wait_ns"),
        ("offset_ns.3", "clocks.offset_ns.3"),
        ("redundancy_ratio", "sharding.redundancy_ratio"),
        ("total_padding_bytes", "padding.total_padding_bytes"),
        ("hot_expert_ratio", "moe.layers.hot_expert_ratio"),
        ("calls.hot_expert_ratio", "moe.calls.hot_expert_ratio"),
    ],
)
def test_a_name_of_the_json_output_means_one_figure(name: str, path: str) -> None:
    assert str(path_of(name)) == path


def test_a_name_in_several_results_needs_a_prefix() -> None:
    with pytest.raises(TraceflowError, match=r"several figures .*communication\.collectives\.payload_bytes, .*budget"):
        path_of("payload_bytes")
    assert str(path_of("budget.total.payload_bytes")) == "budget.total.payload_bytes"


def test_every_figure_is_of_a_question_that_needs_no_more_than_a_run() -> None:
    for kind in {path.kind for path in _paths()}:
        ask = signature(getattr(Run, kind.replace("-", "_")))
        assert [name for name, one in ask.parameters.items() if one.default is one.empty] == ["self"]


@pytest.mark.parametrize(
    "name",
    [
        "exposed_shar",
        "by_kind_ns.comptue",
        "weather.exposed_share",
        "claims.verdict",
        "all.skipped",
        "plan_check.groups",
    ],
)
def test_a_name_that_no_output_has_is_refused(name: str) -> None:
    with pytest.raises(TraceflowError, match="no figure is called so"):
        path_of(name)


# ---- what passes ----


def gates(*expressions: str, **options: Any) -> list[tuple[bool, float | None, float | None]]:
    found = check(two_cards().run(), expressions, **options)
    return [(gate.passed, gate.value, gate.limit) for gate in found.gates]


def test_known_answers_of_two_cards() -> None:
    """Card 0 computes 4 ms and card 1 nine, then both reduce for 2: 11 ms, of which card 0 exposes 7 and card 1 two."""
    ms = 1_000_000
    assert gates("makespan_ns == 11 ms", "makespan_ns < 11 ms") == [(True, 11 * ms, 11 * ms), (False, 11 * ms, 11 * ms)]
    assert gates("communication.exposed_ns < 7 ms", "communication.exposed_ns <= 7 ms") == [
        (False, 7 * ms, 7 * ms),
        (True, 7 * ms, 7 * ms),
    ]
    assert gates("communication.exposed_ns > 1 ms", "3 ms > communication.exposed_ns") == [
        (True, 2 * ms, ms),
        (False, 7 * ms, 3 * ms),
    ]
    assert gates(
        *(f"{of}(communication.exposed_ns) == {ms} ms" for of, ms in (("min", 2), ("mean", 4.5), ("sum", 9)))
    ) == [
        (True, 2 * ms, 2 * ms),
        (True, 4.5 * ms, 4.5 * ms),
        (True, 9 * ms, 9 * ms),
    ]
    assert gates("removable.transfer_ns == 2 ms", "participants.wait_ns <= 5 ms") == [
        (True, 2 * ms, 2 * ms),
        (True, 5 * ms, 5 * ms),
    ]
    assert gates("by_kind_ns.compute / makespan_ns > 80 %")[0][0]
    assert gates("by_kind_ns.idle == 0") == [(True, 0, 0)]  # a kind that takes no time is left out of the output


def test_the_baseline_is_the_same_figure_of_another_run() -> None:
    ms = 1_000_000
    slow = two_rounds().run()  # 22 ms
    assert gates("makespan_ns <= 0.5 * baseline", baseline=slow) == [(True, 11 * ms, 11 * ms)]
    assert gates("makespan_ns < 0.5 * baseline", baseline=slow)[0][0] is False
    assert gates("baseline.makespan_ns - makespan_ns == 11 ms", baseline=slow)[0][0]
    assert gates("communication.exposed_ns <= baseline", baseline=two_cards().run())[0][
        0
    ]  # the worst of both, not each with each
    assert gates("mean(communication.exposed_ns) == baseline", baseline=two_cards().run())[0][0]


def test_what_is_not_known_never_passes() -> None:
    found = check(
        two_cards().run(),
        [
            "live_peak_bytes < 1 GiB",
            "step_ns < 1 s",
            "step_ns > 0",
            "step_ns != 5",
            "redundancy_ratio < 2",
            "point_to_point.wait_ns < 1 s",
        ],
    )
    assert [(gate.passed, gate.value) for gate in found.gates] == [(False, None)] * 6
    assert all(gate.reason for gate in found.gates)
    assert {finding.code for finding in found.findings} == {"TF283"}
    assert {gap.what for gap in found.skipped} == {f"/result/gates/{i}/value" for i in range(6)}


def test_several_values_are_equal_to_something_only_if_they_are_equal() -> None:
    found = check(two_cards().run(), ["communication.exposed_ns == 7 ms", "per_participant.copy_ns == 0"])
    assert [gate.passed for gate in found.gates] == [False, True]
    assert "several values" in str(found.gates[0].reason)


@pytest.mark.parametrize(
    ("text", "at", "why"),
    [
        ("exposed_shar < 0.1", 0, "no figure is called so"),
        ("0.1 > exposed_shar", 6, "no figure is called so"),
        ("payload_bytes < 5", 0, "several figures"),
        ("3 < 4", 0, "no quantity"),
        ("makespan_ns < baseline", 14, "no baseline"),
    ],
)
def test_a_mistake_in_a_name_has_its_place(text: str, at: int, why: str) -> None:
    with pytest.raises(ExpressionError, match=why) as failure:
        read_requirement(text, with_baseline=False)
    assert failure.value.at == at


def test_a_bare_baseline_needs_one_quantity() -> None:
    with pytest.raises(ExpressionError, match="which quantity") as failure:
        read_requirement("makespan_ns + step_ns < baseline", with_baseline=True)
    assert failure.value.at == 24


# ---- what is written ----

GATES = check(two_cards().run(), ["makespan_ns < 1 ms", "makespan_ns < 1 s", "step_ns < 1 s"]).to_dict()


def test_junit_has_a_case_for_each_gate() -> None:
    suites = ET.fromstring(gates_as_junit(GATES, 'runs/"a" <&>'))  # noqa: S314  # of our own making
    assert (suites.get("tests"), suites.get("failures")) == ("3", "2")
    cases = suites.findall("testsuite/testcase")
    assert [case.get("name") for case in cases] == ["makespan_ns < 1 ms", "makespan_ns < 1 s", "step_ns < 1 s"]
    assert [case.find("failure") is not None for case in cases] == [True, False, True]
    assert cases[0].get("classname") == 'traceflow.runs/"a" <&>'
    failure = cases[0].find("failure")
    assert failure is not None
    assert failure.get("message") == "figure 11,000,000, limit 1,000,000"


def test_junit_holds_no_character_that_xml_forbids() -> None:
    suite = ET.fromstring(gates_as_junit(GATES, "runs/\x00\x1b[31m\ufffe\udcff"))  # noqa: S314  # the parser is asked
    assert len(suite.findall(".//testcase")) == 3


def test_markdown_is_one_table_with_what_fails_first() -> None:
    lines = gates_as_markdown(GATES, "a|b`c\nd").splitlines()
    assert lines[0] == "### traceflow check: a\\|b'c\\nd"
    assert lines[2] == "1 of 3 gates hold."
    assert [line.split("|")[1].strip() for line in lines[6:]] == ["FAILS", "unknown", "holds"]
    assert all(line.replace("\\|", "").count("|") == 6 for line in lines[4:])


# ---- the command line ----


def test_exit_codes(tmp_path: Path, capsys: Capture) -> None:
    run = kineto(tmp_path / "a", 500, 510, 520)
    assert main(["check", run, "--require", "step_ns < 1 ms"]) == 0
    assert main(["check", run, "--require", "step_ns < 1 ms", "--require", "step_ns < 1 us"]) == 3
    assert main(["check", run, "--require", "live_peak_bytes < 1 TiB"]) == 3
    assert main(["check", str(tmp_path / "none"), "--require", "step_ns < 1 ms"]) == 1
    assert main(["check", run, "--require", "step_ns < baseline", "--baseline", str(tmp_path / "none")]) == 1
    assert main(["check", run, "--require", "step_ns < 1 ms", "--step", "99"]) == 0  # a summary is of no step
    assert main(["check", run, "--require", "makespan_ns < 1 ms", "--step", "99"]) == 1
    assert main(["check", run, "--require", "makespan_ns < 1 ms", "--window", "ProfilerStep#7"]) == 1
    assert main(["check", run, "--require", "makespan_ns < 1 ms", "--window", "cudaLaunchKernel#2"]) == 0
    capsys.readouterr()
    assert main(["check", run, "--require", "step_ns << 1 ms"]) == 2
    assert "\n  step_ns << 1 ms\n           ^" in capsys.readouterr().err
    assert main(["check", run, "--require", "step_ms < 1"]) == 2
    assert "\n  step_ms < 1\n  ^" in capsys.readouterr().err
    assert main(["check", str(tmp_path / "none"), "--require", "step_ns < baseline"]) == 2  # before anything is read


def test_the_output_is_json_junit_and_markdown(tmp_path: Path, capsys: Capture) -> None:
    run = kineto(tmp_path / "a", 500, 510, 520)
    files = {name: str(tmp_path / name) for name in ("gates.xml", "gates.md")}
    asked = ["check", run, "--require", "step_ns <= 1.1 * baseline", "--baseline", run, "--format", "json"]
    written = ["--junit", files["gates.xml"], "--markdown", files["gates.md"]]
    assert main([*asked, *written]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["kind"] == "check"
    assert document["result"]["passed"] is True
    (gate,) = document["result"]["gates"]
    assert (gate["value"], gate["limit"], gate["passed"]) == (505_000, 555_500, True)
    assert [figure["figure"] for figure in gate["figures"]] == [
        "summary.steady_state.median_ns",
        "baseline.summary.steady_state.median_ns",
    ]
    assert ET.parse(files["gates.xml"]).getroot().get("failures") == "0"  # noqa: S314  # of our own making
    assert "1 of 1 gates hold." in Path(files["gates.md"]).read_text()
    assert main([*asked, *written]) == 1  # nothing is overwritten unasked
    assert main([*asked, *written, "--force"]) == 0


def test_text_names_the_gate_that_fails(tmp_path: Path, capsys: Capture) -> None:
    assert main(["check", kineto(tmp_path / "a", 500), "--require", "step_ns < 1 us"]) == 3
    out = capsys.readouterr().out
    assert "0 of 1 gates hold" in out
    assert "TF283 error: step_ns < 1 us does not hold: it is 495,000, the limit is 1,000" in " ".join(out.split())


def test_a_project_settles_its_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    run = kineto(tmp_path / "a", 500)
    monkeypatch.chdir(tmp_path)
    assert main(["check", run]) == 2
    settings = tmp_path / "pyproject.toml"
    settings.write_text('[tool.traceflow]\nrequire = ["step_ns < 1 ms", "step_ns < 1 us"]\n')
    assert main(["check", run]) == 3
    assert main(["check", run, "--require", "step_ns < 1 ms"]) == 0  # what is asked here counts alone
    settings.write_text('[tool.traceflow]\nrequire = ["step_ns <"]\n')
    capsys.readouterr()
    assert main(["check", run]) == 2
    assert "[tool.traceflow]" in capsys.readouterr().err
    settings.write_text("[tool.traceflow]\nrequire = 3\n")
    assert main(["check", run]) == 1


# ---- Python and pytest ----


def test_python_says_the_same() -> None:
    assert tf.check(two_cards().run(), ["makespan_ns < 1 s"]).passed
    assert not tf.check(two_cards().run(), ["makespan_ns < 1 ms"]).passed


def test_a_test_fails_with_a_line_for_each_gate() -> None:
    checked = Checked(two_cards().run("runs/a"), baseline=two_rounds().run())
    assert checked.require("makespan_ns < baseline").require("makespan_ns < 1 s") is checked
    with pytest.raises(AssertionError) as failure:
        checked.require("makespan_ns < 1 ms", "makespan_ns < 1 s", "step_ns < 1 s")
    first, *lines = str(failure.value).splitlines()
    assert first == "runs/a does not keep to its limits:"
    assert [line.split(":")[0] for line in lines] == [
        "  TF283 makespan_ns < 1 ms does not hold",
        "  TF283 step_ns < 1 s does not hold",
    ]
    with pytest.raises(ExpressionError):
        checked.require("makespan_ns <")


def test_the_fixture_works_in_a_run_of_pytest_and_loads_nothing_heavy_before(tmp_path: Path) -> None:
    run = kineto(tmp_path / "a", 500, 510)
    (tmp_path / "test_step.py").write_text(
        "import sys\n"
        "def test_light():\n"
        "    assert not {'numpy', 'pandas', 'numba', 'jax', 'torch'} & set(sys.modules)\n"
        "def test_holds(traceflow_check):\n"
        f"    traceflow_check({run!r}).require('step_ns < 1 ms')\n"
        "def test_fails(traceflow_check):\n"
        f"    traceflow_check({run!r}).require('step_ns < 1 us')\n"
    )
    plugin = [] if _installed() else ["-p", "traceflow.pytest_plugin"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", *plugin, "test_step.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "1 failed, 2 passed" in done.stdout, done.stdout + done.stderr
    assert "TF283 step_ns < 1 us does not hold: it is" in done.stdout
    assert done.returncode == 1


def _installed() -> bool:
    """Whether the installed distribution already names the plugin."""
    from importlib.metadata import entry_points

    return any(entry.value == "traceflow.pytest_plugin" for entry in entry_points(group="pytest11"))


def test_the_plugin_is_declared() -> None:
    import tomllib

    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert settings["project"]["entry-points"]["pytest11"] == {"traceflow": "traceflow.pytest_plugin"}
