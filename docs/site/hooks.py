"""What MkDocs does not do by itself: one list of pages, and links that lead out of docs/.

The README is the front page and the changelog is a page. Any other file that a page links to, a test or an example,
is part of the site as plain text, so that a link means the same in the repository and on the site, and none needs
a network. A link to something that is not there is left as it is, and MkDocs complains.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
PAGES = {"index.md": "README.md", "changelog.md": "CHANGELOG.md"}
GROUP = re.compile(r"^\*\*(.+)\*\*:\n((?:\[.+\n)+)", re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s#]+)(#[^)\s]*)?\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Take the navigation from the README, and the names of headings as GitHub makes them."""
    config.nav = [{"Home": "index.md"}]
    for title, links in GROUP.findall((ROOT / "README.md").read_text()):
        pages = re.findall(r"\[(.+?)\]\(([^)#]+)\)", links)  # not those to a part of a page
        config.nav.append({title: [{name: _on_site("README.md", target)} for name, target in pages]})
    config.mdx_configs.setdefault("toc", {})["slugify"] = slug
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add what is linked to, and is not in docs/."""
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


def slug(heading: str, separator: str) -> str:
    """GitHub's name of a heading."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", separator)


def _in_repository(uri: str) -> str:
    return PAGES.get(uri, f"docs/{uri}")


def _on_site(page: str, target: str) -> str:
    """Where something is on the site that a page of the repository links to."""
    if "://" in target:
        return target
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
