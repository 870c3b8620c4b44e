"""The report in a real browser: it fits, is readable, and makes no requests.

Chromium (`chromium-headless-shell` of Debian, which .ci/run installs) opens a page with the report
in frames, wide and narrow, and measures what it drew. Without it these tests are skipped.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import txlog
from tests.report_kit import full_store
from tests.tiers import graded
from txlog.page.figures import figures
from txlog.page.report import page

BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")
WIDTHS = (1200, 390, 320)
CONTRAST_MIN = 4.5  # WCAG 2.2, 1.4.3
# In the browser: this script of the surrounding page measures each frame, and returns JSON.
MEASURE = """
const shown = (node) => node.getClientRects().length > 0;
const rgb = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
const light = (c) => { const [r, g, b] = c.map((v) => { v /= 255;
  return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
function ground(node) { for (; node; node = node.parentElement) {
  const c = rgb(node.ownerDocument.defaultView.getComputedStyle(node).backgroundColor);
  if (c.length === 3 || c[3] > 0) return c.slice(0, 3); } return [255, 255, 255]; }
function measure(frame) {
  const doc = frame.contentDocument, view = frame.contentWindow, texts = [];
  const walk = doc.createTreeWalker(doc.body, view.NodeFilter.SHOW_TEXT);
  for (let node; (node = walk.nextNode());) {
    const at = node.parentElement, text = node.textContent.trim();
    if (!text || !shown(at) || at.closest('title')) continue;
    const style = view.getComputedStyle(at), range = doc.createRange();
    range.selectNodeContents(node);
    const box = range.getBoundingClientRect();
    const a = light(rgb(style.color).slice(0, 3)), b = light(ground(at));
    texts.push({text, size: parseFloat(style.fontSize),
      contrast: (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05),
      left: box.left, right: box.right, top: box.top, bottom: box.bottom,
      scrolls: !!at.closest('.scroll'), tick: !!at.closest('.ticks'),
      scale: !!at.closest('.scale')});
  }
  const marks = [...doc.querySelectorAll('rect:not(.chip rect), path.line')].filter(shown);
  return {width: view.innerWidth, needs: doc.documentElement.scrollWidth, texts,
    marks: marks.length,
    empty: marks.filter((m) => { const b = m.getBoundingClientRect();
      return b.width === 0 && b.height === 0; }).length,
    unpainted: marks.filter((m) => { const s = view.getComputedStyle(m);
      return s.fill === 'none' && s.stroke === 'none' || s.fill === 'rgb(0, 0, 0)'; }).length,
    asked: view.performance.getEntriesByType('resource').length,
    background: view.getComputedStyle(doc.body).backgroundColor,
    refused: frame.refused.length,
    title: doc.title};
}
"""
HARNESS = """<!DOCTYPE html><meta charset="utf-8"><body><script>{measure}
const reports = {reports};
const all = reports.flatMap((text, at) => {widths}.map((width) => new Promise((done) => {{
  const frame = document.createElement('iframe');
  frame.style.cssText = `width:${{width}}px;height:900px;border:0`;
  frame.refused = [];
  frame.onload = () => {{ if (!frame.contentDocument.body) return;
    done({{at, ...measure(frame)}}); }};
  frame.srcdoc = text;
  document.body.append(frame);
  frame.contentWindow.addEventListener('securitypolicyviolation', (e) => frame.refused.push(e));
}})));
Promise.all(all).then((found) => {{
  const out = document.createElement('pre'); out.id = 'found';
  out.textContent = JSON.stringify(found);
  document.body.replaceChildren(out);
}});
</script>"""

pytestmark = pytest.mark.needs(*BROWSERS)


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Reports of a store with everything, of a store with one topic, and of an empty one."""
    folder = tmp_path_factory.mktemp("browser")
    pages: list[str] = []
    for name in ("full", "one", "empty"):
        path, clock = str(folder / name), None
        if name == "full":
            clock = full_store(path, hours=30)
        else:
            txlog.init(path)
        with txlog.open(path, clock=clock) as client:
            if name == "one":
                client.create_topic("orders")
                client.producer("orders").send(b"only one")
            pages.append(page(figures(client)))
    return pages


def browser() -> str:
    """The first browser on this machine."""
    return next(filter(None, map(shutil.which, BROWSERS)))


def seen(reports: list[str], folder: Path, *options: str) -> list[dict[str, Any]]:
    """Chromium's measurements of each report at each width."""
    file = folder / "harness.html"
    encoded = json.dumps(reports).replace("</", "<\\/")
    text = HARNESS.format(measure=MEASURE, reports=encoded, widths=list(WIDTHS))
    file.write_text(text, encoding="utf-8")
    done = subprocess.run(
        [
            browser(),
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            f"--user-data-dir={folder / 'profile'}",
            "--host-resolver-rules=MAP * ~NOTFOUND",
            "--window-size=1300,2000",
            "--virtual-time-budget=20000",
            *options,
            "--dump-dom",
            file.as_uri(),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    match = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    assert match is not None, done.stdout[-2000:] + done.stderr[-2000:]
    measurements: list[dict[str, Any]] = json.loads(html.unescape(match[1]))
    assert len(measurements) == len(reports) * len(WIDTHS)
    return measurements


@pytest.mark.parametrize("scheme", graded(["light", "dark"], 1))
def test_a_report_fits_every_screen_and_can_be_read(
    scheme: str, reports: list[str], tmp_path: Path
) -> None:
    """Kills: a table that widens a phone's page, labels over each other, grey on grey, a mark
    without colour, a style that its own policy refuses, anything loaded.
    """
    dark = ["--blink-settings=preferredColorScheme=0"] if scheme == "dark" else []
    measurements = seen(reports, tmp_path, *dark)
    for measured in measurements:
        place = f"report {measured['at']} at {measured['width']}"
        assert measured["width"] in WIDTHS
        assert measured["needs"] <= measured["width"], f"{place} needs {measured['needs']}"
        assert (
            measured["asked"],
            measured["refused"],
            measured["empty"],
            measured["unpainted"],
        ) == (0, 0, 0, 0), place
        assert measured["title"].endswith("txlog report")
        is_dark = sum(map(int, re.findall(r"\d+", measured["background"])[:3])) < 200
        assert is_dark == (scheme == "dark"), place
        for text in measured["texts"]:
            description = f"{place}: {text['text']!r}"
            assert text["contrast"] >= CONTRAST_MIN, (
                f"{description} has contrast {text['contrast']:.2f}"
            )
            assert text["size"] >= 11, f"{description} is {text['size']} px"
            if not text["scrolls"]:
                assert text["left"] >= 0 and text["right"] <= measured["width"], (
                    f"{description} is cut"
                )
        for kind in ("tick", "scale"):
            _check_apart(place, [text for text in measured["texts"] if text[kind]])
    marks = {(measured["at"], measured["width"]): measured["marks"] for measured in measurements}
    assert all(marks[0, width] > 100 for width in WIDTHS)
    assert all(marks[1, width] >= 2 for width in WIDTHS)


def _check_apart(place: str, texts: list[dict[str, Any]]) -> None:
    """Check that labels of axes do not overlap."""
    for at, label in enumerate(texts):
        for other in texts[at + 1 :]:
            across = min(label["right"], other["right"]) - max(label["left"], other["left"])
            down = min(label["bottom"], other["bottom"]) - max(label["top"], other["top"])
            assert across <= 1 or down <= 2, f"{place}: {label['text']!r} over {other['text']!r}"


@pytest.mark.slow
def test_a_report_prints_on_pages_with_everything_open(reports: list[str], tmp_path: Path) -> None:
    """A printed page shows the sections that are folded on a screen, as paper has no clicks."""
    file, printed = tmp_path / "report.html", tmp_path / "report.pdf"
    file.write_text(reports[0], encoding="utf-8")
    subprocess.run(
        [
            browser(),
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            f"--user-data-dir={tmp_path / 'profile'}",
            f"--print-to-pdf={printed}",
            file.as_uri(),
        ],
        capture_output=True,
        check=True,
        timeout=120,
    )
    pages = re.findall(rb"/Type\s*/Page\b", printed.read_bytes())
    assert 2 <= len(pages) <= 6
