"""Owns how the site adds the documents of the root to docs/, and the links between all pages.

mkdocs calls the hooks in this module (mkdocs.yml). In the repository a document links to another by
its path, so that the links work wherever the repository is read; here they become links between
pages, and so do pictures. A link to a file that is neither (LICENSE, examples/) becomes its text.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
# mkdocs takes README.md for the first page of a directory: on the site it has another name.
OF_ROOT = {
    path.name: f"{path.stem.lower()}.md" for path in sorted(ROOT.glob("*.md")) if path.is_file()
}
_LINK = re.compile(r"\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
_CODE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the documents of the root."""
    for name, page in OF_ROOT.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn the links of a document into those of its page."""
    source = page.file.src_uri
    names = {made: name for name, made in OF_ROOT.items()}
    place = names.get(source, f"docs/{source}")
    parts = _CODE.split(markdown)
    for number, part in enumerate(parts):
        if number % 2:  # a block of code; one with a file's name after the language has it as title
            parts[number] = re.sub(
                r"^```(\w+) (\S+)$", r'```\1 title="\2"', part, flags=re.MULTILINE
            )
        else:
            parts[number] = _LINK.sub(lambda match: _link(match, place, source), part)
    return "".join(parts)


def _link(match: re.Match[str], place: str, source: str) -> str:
    text, target, anchor = match[1], match[2], match[3] or ""
    if re.match(r"[a-z]+:", target):
        return match[0]
    path = posixpath.normpath(posixpath.join(posixpath.dirname(place), target))
    page = OF_ROOT.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)
    if page is None or not page.endswith((".md", ".svg", ".png")):
        return text
    return f"[{text}]({posixpath.relpath(page, posixpath.dirname(source) or '.')}{anchor})"
