"""The wheel holds the whole package, and pyproject.toml describes it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from sources import PACKAGES, ROOT, files_of

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel built from a copy of the sources, so that nothing built earlier can slip in."""
    copy, output = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    for name in ("traceflow", "collectors", "analyzers"):
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--wheel-dir", str(output), str(copy)], check=True)
    return zipfile.ZipFile(next(output.glob("*.whl")))


def installed_name(package: str, folder: Path, path: Path) -> str:
    """Where a source file stands in the wheel."""
    return f"{package.replace('.', '/')}/{path.relative_to(folder).as_posix()}"


def package_of(path: Path) -> str:
    """The dotted name of the package in a folder that the wheel holds."""
    home = next(name for name, folder in PACKAGES.items() if path.is_relative_to(folder))
    return ".".join([home, *path.relative_to(PACKAGES[home]).parts])


def test_the_wheel_holds_every_file_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    expected = {
        installed_name(package, folder, path) for package, folder in PACKAGES.items() for path in files_of(folder)
    }
    packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert packed == expected


def test_the_wheel_names_its_command_and_licence(wheel: zipfile.ZipFile) -> None:
    (info,) = {name.partition("/")[0] for name in wheel.namelist() if ".dist-info/" in name}
    assert info.startswith("traceflow_ml-")
    assert "traceflow = traceflow.cli:main" in wheel.read(f"{info}/entry_points.txt").decode()
    assert f"{info}/licenses/LICENSE" in wheel.namelist()


@pytest.mark.parametrize("line", [["--version"], ["show", "nothing"]])
def test_the_package_is_its_command(line: list[str]) -> None:
    command = shutil.which("traceflow", path=str(Path(sys.executable).parent))
    assert command is not None
    one, other = (
        subprocess.run([*start, *line], check=False, capture_output=True, text=True)
        for start in ([command], [sys.executable, "-m", "traceflow"])
    )
    assert one.stdout + one.stderr
    assert (one.returncode, one.stdout, one.stderr) == (other.returncode, other.stdout, other.stderr)


def test_explaining_a_trace_needs_no_framework(wheel: zipfile.ZipFile) -> None:
    (path,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    requirements = Parser().parsestr(wheel.read(path).decode()).get_all("Requires-Dist", [])
    always = {requirement.split(">")[0] for requirement in requirements if "extra ==" not in requirement}
    assert always.isdisjoint({"jax", "torch", "xprof", "tensorboard-plugin-profile", "distributed"})
    assert always == {requirement.split(">")[0] for requirement in PYPROJECT["project"]["dependencies"]}


def test_the_listed_packages_are_the_folders() -> None:
    folders = {path.parent for folder in PACKAGES.values() for path in files_of(folder) if path.suffix == ".py"}
    assert sorted(PYPROJECT["tool"]["setuptools"]["packages"]) == sorted(map(package_of, folders))
    assert all((folder / "__init__.py").exists() for folder in folders)


def test_every_requirement_is_pinned() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {normal(line.partition("==")[0]) for line in lines if not line.startswith("#")}
    extras = PYPROJECT["project"]["optional-dependencies"]
    requirements = [*PYPROJECT["project"]["dependencies"], *(name for extra in extras.values() for name in extra)]
    required = {normal(requirement.partition(">=")[0]) for requirement in requirements if ">=" in requirement}
    assert required - pinned == set()


def normal(name: str) -> str:
    """A distribution's name as an index compares it."""
    return name.lower().replace("_", "-")
