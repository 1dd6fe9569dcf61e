"""The shape of the project: what imports what, what lies where, what the README promises."""

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

from conftest import require

FORBIDDEN_IN_CORE = ("apache_beam", "pyarrow", "google", "pipeline", "pandas")


def python_files(folder: Path) -> list[Path]:
    files = sorted(folder.rglob("*.py"))
    assert files
    return files


def imported_roots(path: Path) -> set[str]:
    roots = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            roots |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            roots.add((node.module or "").split(".")[0])
    return roots


def test_core_imports_mathematics_only(project_root):
    for path in python_files(project_root / "ssdp_core"):
        assert not imported_roots(path) & set(FORBIDDEN_IN_CORE), path


def test_importing_the_core_loads_no_beam_arrow_or_cloud_code():
    code = (
        "import sys, ssdp_core; "
        # Namespace packages put an empty 'google' into every interpreter; storage is the real one.
        "bad = {'apache_beam', 'pyarrow', 'google.cloud.storage', 'pipeline', 'pandas'} "
        "& set(sys.modules); sys.exit(str(bad) if bad else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_everything_in_all_exists():
    module = importlib.import_module("ssdp_core")
    assert module.__all__ == sorted(module.__all__)
    for name in module.__all__:
        assert hasattr(module, name)


def test_only_the_fixed_things_lie_at_the_top(project_root):
    listed = subprocess.run(
        ["git", "ls-files"], cwd=project_root, capture_output=True, text=True, check=False
    )
    require(listed.returncode == 0, "a git checkout, which knows the list of files,")
    top = {line.split("/")[0] for line in listed.stdout.splitlines()}
    allowed = {"pyproject.toml", "pipeline", "ssdp_core", "tests", "deploy", "README.md", "LICENSE"}
    assert {name for name in top if not name.startswith(".")} <= allowed


def test_modules_stay_small(project_root):
    for folder in ("ssdp_core", "pipeline"):
        for path in python_files(project_root / folder):
            assert len(path.read_text().splitlines()) <= 500, path


def test_every_name_in_the_notation_table_exists(project_root):
    text = (project_root / "ssdp_core" / "README.md").read_text()
    source = "\n".join(path.read_text() for path in python_files(project_root / "ssdp_core"))
    table = text.split("## Notation")[1].split("Ours:")[0]
    names = set()
    for row in re.findall(r"^\|.*\|$", table, flags=re.M)[2:]:
        names |= set(re.findall(r"`([A-Za-z_.]+)`", row.rsplit("|", 2)[1]))
    assert len(names) > 25
    for name in names:
        assert re.search(rf"\b{re.escape(name.split('.')[-1])}\b", source), name


def test_every_room_is_on_the_map(project_root):
    text = (project_root / "ssdp_core" / "README.md").read_text().split("## Notation")[0]
    for path in (project_root / "ssdp_core").iterdir():
        if path.name.startswith("_") or (path.is_file() and path.suffix != ".py"):
            continue
        assert f"`{path.stem}" in text, f"{path.name} is missing in ssdp_core/README.md"


def test_mechanisms_state_their_guarantee(project_root):
    for relative in (
        "mechanisms.py",
        "curator.py",
        "pvmw.py",
        "accounting.py",
        "queries/gradient.py",
        "queries/tabulated.py",
    ):
        source = (project_root / "ssdp_core" / relative).read_text()
        assert re.search(r"Guarantee", source), relative


def test_no_registry_host_is_named(project_root):
    hosts = re.compile(
        r"pypi\.org|pythonhosted|crates\.io|npmjs\.org|proxy\.golang|repo1?\.maven|deb\.debian"
    )
    for path in project_root.rglob("*"):
        inside = path.relative_to(project_root).parts
        if path.suffix in {".py", ".md", ".toml", ".yml", ".yaml"} and not any(
            part in {".git", ".venv", "node_modules"} for part in inside
        ):
            if path == Path(__file__).resolve():
                continue
            assert not hosts.search(path.read_text()), path
