"""The live page of `txlog serve` in a browser: docs/pictures/page.png and page-dark.png.

    python -m scripts.pictures.page

The store is that of `txlog demo`, with the invoices of a shop; the server is a real one.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.harness import Server
from tests.serve.chromium import Page

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = ROOT / "docs" / "pictures"
WIDTH, HEIGHT = 1180, 940
_SHOWN: Final = (
    "document.documentElement.dataset.looks >= 2 && document.querySelector('#history section')"
)


def write() -> list[Path]:
    """Make the pictures; returns their paths."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "shop"
        demo = [sys.executable, "-m", "txlog", "demo", str(store), "--limit", "2000"]
        subprocess.run([*demo, "--kills", "2"], check=True, capture_output=True)
        with Server(store, "--pulsar", "off", "--http", "127.0.0.1:0") as server:
            [url] = server.urls
            return [_photographed(url, Path(folder), scheme) for scheme in ("light", "dark")]


def _photographed(url: str, folder: Path, scheme: str) -> Path:
    file = FOLDER / ("page.png" if scheme == "light" else "page-dark.png")
    with Page(folder / scheme) as page:
        page.look(WIDTH, HEIGHT, scheme)
        page.tell("Page.navigate", url=url)
        page.until(_SHOWN)
        # the path of a temporary directory means nothing to a reader
        page.ask("document.querySelector('#said b').textContent = 'shop'")
        page.photograph(file)
    return file


if __name__ == "__main__":
    for path in write():
        print(f"wrote {path.relative_to(ROOT)}, {path.stat().st_size:,} B")
