"""What the design promises about the source itself."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import coterie

SOURCE = Path(coterie.__file__).parent
LAYERS = [
    {"errors"},
    {"durable", "wire", "framing", "devices", "forking", "importing", "own", "awaited"},
    {"record", "seeds", "settings", "ledger", "protocols", "style"},
    {"data", "models", "results", "aggregation"},
    {"training"},
    {"site"},
    {"population"},
    {"replies"},
    {"method"},
    {"methods", "engines"},
    {"running", "hostile"},
    {"testing", "studies", "deployment"},
    {"cli"},
    {"__main__"},
]
"""From what everything may import to what nothing may."""


def part(module: str) -> str:
    return module.split(".")[1] if "." in module else "__init__"


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("coterie"):
            found |= {f"coterie.{alias.name}" for alias in node.names} if node.module == "coterie" else {node.module}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.startswith("coterie.")}
    return found


def files() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_go_one_way(path) -> None:
    level = {name: index for index, layer in enumerate(LAYERS) for name in layer}
    own = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    if own == "__init__":  # the public surface, which gathers from everywhere
        return
    assert own in level, f"{own} has no place in LAYERS"
    for module in imports(path):
        other = part(module)
        if other != own:
            assert level[other] < level[own], f"{path.name} imports {module}"


def test_there_is_one_training_loop() -> None:
    calls = [
        str(path.relative_to(SOURCE))
        for path in files()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and (node.attr == "backward" or ast.unparse(node) == "torch.autograd.grad")
    ]
    assert calls == ["training/loop.py", "training/objectives.py"]  # the loop, and what it asks of a term


@pytest.mark.parametrize(
    "module",
    ["coterie.ledger", "coterie.protocols", "coterie.results.report", "coterie.cli.watch", "coterie.cli.trackers", "coterie.cli.main"],
)
def test_what_reads_ledgers_does_not_need_torch(module) -> None:
    code = f"import sys, {module}; assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_extras_are_never_imported_when_a_module_is(path) -> None:
    extras = {"flwr", "ray", "tensorboard", "mlflow", "datasets", "torchvision", "pandas", "onnx", "dp_accounting", "cryptography"}
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            assert not {name.split(".")[0] for name in names} & extras


def test_public_names_have_docstrings() -> None:
    for name in coterie.__all__:
        found = getattr(coterie, name)
        if (inspect.isclass(found) and not issubclass(found, Exception)) or inspect.isfunction(found):
            assert ">>>" in (found.__doc__ or ""), f"{name} has no example"


def test_the_public_surface() -> None:
    assert sorted(coterie.__all__) == sorted(["__version__", *(name for names in coterie._HOMES.values() for name in names)])
    assert all(hasattr(coterie, name) for name in coterie.__all__)
    assert set(coterie.__all__).isdisjoint(path.stem for path in SOURCE.iterdir())  # once imported, a module would hide the name
    for path in files():
        tree = ast.parse(path.read_text())
        if not path.name.startswith("__"):
            assert any(isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__" for node in tree.body), path.name
            assert ast.get_docstring(tree), path.name


def test_functions_and_files_are_short() -> None:
    """No function over 45 lines, no file over 400: what is longer has two jobs."""
    for path in files():
        text = path.read_text()
        assert text.count("\n") <= 400, path.relative_to(SOURCE)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno - node.lineno < 45, f"{path.relative_to(SOURCE)}: {node.name}"


def test_public_classes_exist_once() -> None:
    """One name for one thing."""
    homes: dict[str, list[str]] = {}
    for path in files():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(str(path.relative_to(SOURCE)))
    assert {name: where for name, where in homes.items() if len(where) > 1} == {}


def test_fit_and_site_fit_take_the_same_options() -> None:
    """Both unpack one `Options`, so that they cannot drift apart."""
    loop, site = ((SOURCE / name).read_text() for name in ("training/loop.py", "site.py"))
    assert "**options: Unpack[Options]" in loop
    assert "**options: Unpack[Options]" in site
