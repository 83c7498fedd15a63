"""What `mkdocs build` (make docs) adds to the pages: tables of reference, made from the code, and pages and images that lie outside docs/.

Nothing that it makes is committed, so that it cannot be older than the code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main
from mkdocs.structure.files import File, Files

from coterie import PROTOCOLS, __all__
from coterie.cli.catalogue import Kind, Setting, entries, settings_of
from coterie.cli.main import app
from coterie.cli.writing import ABOUT, SECTIONS

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = re.compile(r"(!?)\[([^\]]*)\]\(((?:\.\./)+[^)#:]+)(#[^)]*)?\)")
"""A link that leaves the folder of pages."""
TWICE = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""Pages that lie at the top, and what they are on the site."""
TABLES = {"": ("coterie.running.experiment", "Experiment"), **SECTIONS, "new_clients": ("coterie.running.sections", "NewClients")}
"""The tables of an experiment file, and the classes behind them."""


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages, and what the committed ones show from elsewhere."""
    for source, page in TWICE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    for image in sorted(images()):
        files.append(File.generated(config, image, abs_src_path=str(ROOT / image)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Links to files that are not on the site become their names; images and pages that were added are found where they were put."""
    here = page.file.src_uri
    if here in REFERENCE:
        return "\n".join([markdown, *REFERENCE[here]()])
    if here in TWICE.values():
        markdown = re.sub(r"\]\(docs/([^)]+)\)", r"](\1)", markdown)
        return re.sub(r"\[([^\]]+)\]\((?!https?:|#)([^)]*)\)", lambda found: _known(found, files), markdown)
    up = "../" * here.count("/")

    def replaced(found: re.Match[str]) -> str:
        bang, text, target = found.group(1), found.group(2), found.group(3).replace("../", "")
        if bang:
            return f"![{text}]({up}{target})"
        return f"[{text}]({up}{TWICE[target]})" if target in TWICE else text

    return OUTSIDE.sub(lambda found: replaced(found) if _leaves(here, found.group(3)) else found.group(), markdown)


def _leaves(here: str, target: str) -> bool:
    return target.count("../") > here.count("/")


def _known(found: re.Match[str], files: Files) -> str:
    return found.group() if files.get_file_from_path(found.group(2).partition("#")[0]) else found.group(1)


def images() -> set[str]:
    """Images outside docs/ that a page shows."""
    pages = [path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md")]
    shown = {found.group(3).replace("../", "") for text in pages for found in OUTSIDE.finditer(text) if found.group(1)}
    return {name for name in shown if not (ROOT / "docs" / name).exists()}


def _row(setting: Setting) -> str:
    default = "required" if setting.default == "(required)" else setting.default
    shown = default if default in ("required", "not set", "") else f"`{default}`"
    return f"| `{setting.name}` | {shown} | {setting.sentence or ABOUT.get(setting.name, '')} |".replace("\n", " ")


def _table(rows: tuple[Setting, ...]) -> Iterator[str]:
    if rows:
        yield from ("", "| setting | default | what it is |", "|---|---|---|", *map(_row, rows), "")
    else:
        yield from ("", "No settings.", "")


def settings() -> Iterator[str]:
    """Every kind of thing, everything of it, every setting."""
    for kind in Kind:
        if kind in (Kind.protocols, Kind.experiments):
            continue
        yield from ("", f"## {kind.value.capitalize()}")
        for name, each in entries(kind).items():
            yield from ("", f"### {name} {{ #{kind.value}-{name} }}", "", each.what, *_table(each.settings))


def experiment() -> Iterator[str]:
    """The keys of an experiment file, table by table, and the experiments that come along."""
    for table, where in TABLES.items():
        yield from ("", f"## `[{table}]`" if table else "## At the top", *_table(settings_of(*where)))
    yield from ("", "## Experiments that come along", "", "| name | what it is |", "|---|---|")
    yield from (f"| `{name}` | {each.what} |" for name, each in entries(Kind.experiments).items())


def protocols() -> Iterator[str]:
    """The table of protocols."""
    yield from ("", "| protocol | whose model | on which data | what it is |", "|---|---|---|---|")
    yield from (f"| `{each.name}` | {each.model} | {each.data} | {each.sentence} |" for each in PROTOCOLS.values())


def python() -> Iterator[str]:
    """Every public name, by mkdocstrings."""
    for name in sorted(name for name in __all__ if not name.startswith("_")):
        yield from ("", f"::: coterie.{name}", "")


def commands() -> Iterator[str]:
    """Every command with its arguments and options, as the command line itself describes them."""
    yield from _described("coterie", typer.main.get_command(app))


def _described(path: str, command: Any) -> Iterator[str]:
    inner = getattr(command, "commands", {})
    if not inner:
        yield from ("", f"## `{path}`", "", command.help or "", "", "| | what it is | default |", "|---|---|---|")
        for each in command.params:
            if each.name == "help" or getattr(each, "hidden", False):
                continue
            shown = ", ".join(each.opts) if each.param_type_name == "option" else str(each.name).upper()
            default = "" if each.default in (None, False, [], ()) or each.required or callable(each.default) else f"`{each.default}`"
            what = " ".join((getattr(each, "help", "") or "").split()).replace("|", "\\|")
            yield f"| `{shown}` | {what} | {default} |"
    for name, each in inner.items():
        yield from _described(f"{path} {name}", each)


REFERENCE = {
    "reference/commands.md": commands,
    "reference/experiment.md": experiment,
    "reference/settings.md": settings,
    "reference/protocols.md": protocols,
    "reference/python.md": python,
}
"""Pages whose first lines are committed, so that links to them lead somewhere in a clone too, and what the site adds to each."""
