"""What the page of `celedger report` costs on 2,000 commits × 10 tasks × 12 metrics: its size, the
processor time beyond the change points and, where there is a Chromium, when it is painted.

    python benchmarks/report.py [--in FOLDER] [--rounds 5]

Makes the ledger of large_ledger.py in a temporary folder, or uses the one in FOLDER. The time of
the change points is that of `celedger drift` with its cache filled, measured in turns with the
page's.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "benchmarks")]

from browser import PROGRAM, Browser  # noqa: E402
from reading import generate, processor_seconds  # noqa: E402

CHART = "document.querySelector('#chart svg .over')"
PAINT = "performance.getEntriesByName('first-contentful-paint')"
EMPTY = "<!doctype html><title>empty</title><p>empty"
# Click a cell; when its chart has been drawn and the next frame has begun, tell the milliseconds.
SWITCH = """
new Promise(done => {
  const link = document.querySelectorAll("td a")[NUMBER], chart = document.querySelector("#chart");
  const begun = performance.now();
  new MutationObserver((_, observer) => {
    observer.disconnect();
    requestAnimationFrame(() => setTimeout(() => done(performance.now() - begun)));
  }).observe(chart, { childList: true });
  link.click();
})
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--in", dest="folder", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="celedger-report-") as temporary:
        folder = asked.folder or Path(temporary) / "project"
        if not asked.folder:
            generate(folder)
        page = Path(temporary) / "page.html"
        build(folder, page, asked.rounds)
        weigh(page)
        if PROGRAM:
            paint(page, asked.rounds)
        print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")


def build(folder: Path, page: Path, rounds: int) -> None:
    program = str(Path(sys.executable).with_name("celedger"))
    processor_seconds([program, "drift", "--json"], folder)  # fills the cache
    drift, report = [], []
    for _ in range(rounds):
        drift.append(processor_seconds([program, "drift", "--json"], folder))
        report.append(processor_seconds([program, "report", "-o", str(page)], folder))
    beyond = min(report) - min(drift)
    print(f"build   {min(report):.2f} s of processor time, {beyond:.2f} s beyond `drift`")


def weigh(page: Path) -> None:
    text = page.read_text("utf-8")
    data = sum(map(len, re.findall(r'<script type="text/plain"[^>]*>([^<]*)<', text)))
    whole = len(text.encode())
    print(f"size    {whole / 1e6:.2f} MB, {(whole - data) / 1e3:.0f} kB without data")


def paint(page: Path, rounds: int) -> None:
    empty = page.with_name("empty.html")
    empty.write_text(EMPTY)
    browser = Browser()
    try:
        for path in (empty, page):
            first, chart = [], []
            for _ in range(rounds):
                browser.open(f"file://{path}", until=f"{PAINT}.length")
                first.append(browser.run(f"{PAINT}[0].startTime"))
                if path == page:
                    browser.wait(CHART)
                    chart.append(browser.run("performance.now()"))
            drawn = f", chart {spread(chart)}" if chart else ""
            print(f"{path.stem:8}first paint {spread(first)}{drawn}")
        cells = browser.run("document.querySelectorAll('td a').length")
        switches = [browser.run(SWITCH.replace("NUMBER", str(i))) for i in range(cells - 1, 0, -7)]
        print(f"switch  to another chart {spread(switches)}")
    finally:
        browser.close()


def spread(milliseconds: list[float]) -> str:
    return f"{statistics.median(milliseconds):.0f} ms (least {min(milliseconds):.0f})"


if __name__ == "__main__":
    main()
