"""Extend MkDocs: one list of pages, links that lead out of docs/, and tables that fit a phone.

The README is the front page, and the changelog and the files for contributors are pages. The site has any other file
that a page links to, a test or an example, as plain text. A link therefore means the same in the repository and on the
site, and no link needs a network. The README's absolute links to the repository become links inside the site. MkDocs
complains about a link to a file that does not exist.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

from markdown.extensions import Extension
from markdown.treeprocessors import Treeprocessor
from mkdocs.structure.files import File

if TYPE_CHECKING:
    from markdown import Markdown
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
PAGES = {
    "index.md": "README.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "reporting-vulnerabilities.md": "SECURITY.md",
}
MANY_COLUMNS, MOST_COLUMNS = 5, 10
CONTENTS = "docs/contents.md"
STYLE = "docs/site/style.css"
REPOSITORY = re.findall(r'^Repository = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[0]
GROUP = re.compile(r"^\*\*(.+)\*\*:\n((?:\[.+\n)+)", re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s#]+)(#[^)\s]*)?\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Take the navigation from docs/contents.md, and the names of headings as GitHub makes them."""
    config.nav = [{"Home": "index.md"}]
    for title, links in GROUP.findall((ROOT / CONTENTS).read_text()):
        pages = re.findall(r"\[(.+?)\]\(([^)#]+)\)", links)  # not those to a part of a page
        config.nav.append({title: [{name: _on_site(CONTENTS, target)} for name, target in pages]})
    config.nav.append({"All pages": "contents.md"})
    config.mdx_configs.setdefault("toc", {})["slugify"] = slug
    config.markdown_extensions.append(LabelledTables())
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add what is linked to, and is not in docs/."""
    files.append(File.generated(config, "style.css", abs_src_path=str(ROOT / STYLE)))
    for uri, source in PAGES.items():
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / source)))
    for page in files.documentation_pages():
        for target, _ in LINK.findall(page.content_string):
            uri = _on_site(_in_repository(page.src_uri), target)
            if uri.startswith("source/") and uri not in files.src_uris:
                files.append(File.generated(config, uri, abs_src_path=str(ROOT / _source(uri))))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Let links lead to where things are on the site."""
    here = _in_repository(page.file.src_uri)
    return LINK.sub(lambda link: f"]({_on_site(here, link[1])}{link[2] or ''})", markdown)


class LabelledTables(Extension):
    """Write the name of its column into each cell of a table, and the number of columns around it."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802 - Markdown's name
        """Run after all others."""
        md.treeprocessors.register(_TableLabels(md), "table_labels", 0)


class _TableLabels(Treeprocessor):
    def run(self, root: ET.Element) -> None:
        for parent in list(root.iter()):
            for place, child in enumerate(list(parent)):
                if child.tag == "table":
                    parent[place] = _labelled(child)


def _labelled(table: ET.Element) -> ET.Element:
    columns = ["".join(heading.itertext()) for heading in table.iter("th")]
    for row in table.iter("tr"):
        for column, cell in zip(columns, row.findall("td"), strict=False):
            if column:
                cell.set("data-column", column)
    count = "most" if len(columns) >= MOST_COLUMNS else "many" if len(columns) >= MANY_COLUMNS else len(columns)
    wrapped = ET.Element("div", {"class": f"table columns-{count}"})
    wrapped.append(table)
    return wrapped


def slug(heading: str, separator: str) -> str:
    """GitHub's name of a heading."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", separator)


def _in_repository(uri: str) -> str:
    return PAGES.get(uri, f"docs/{uri}")


def _on_site(page: str, target: str) -> str:
    """Where something is on the site that a page of the repository links to."""
    if target.startswith(REPOSITORY):
        path = os.path.normpath(ROOT / re.sub(r"^/(?:blob|raw|tree)/main/", "", target.removeprefix(REPOSITORY)))
    elif "://" in target:
        return target
    else:
        path = os.path.normpath(ROOT / Path(page).parent / target)
    place = os.path.relpath(path, ROOT)
    for uri, source in PAGES.items():
        if place == source:
            return uri
    if place.startswith("docs/"):
        return place.removeprefix("docs/")
    return f"source/{place}.txt" if Path(path).is_file() else target


def _source(uri: str) -> str:
    return uri.removeprefix("source/").removesuffix(".txt")
