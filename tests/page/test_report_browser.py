"""The page of `celedger report` in a browser: by clicks, keys, drag and touch. Skipped where there
is no Chromium."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from golden.repositories import ELSEWHERE, HERE, OLD, _commits, _writer, broken
from page import browser as browsers
from page import page_repository
from page.browser import Browser
from page.page_repository import COMMITS, CRASH, WORSE
from scripted import typed

from celedger.base.model import OutcomeKind

pytestmark = [
    pytest.mark.skipif(
        not browsers.PROGRAM, reason="there is no Chromium: apt-get install chromium"
    ),
    pytest.mark.xdist_group("browser"),
]
DRAWN = "document.querySelector('#chart svg .over')"
TITLE = "document.querySelector('#drift-title').textContent"
TEXT = "document.querySelector('#chart svg').getAttribute('aria-valuetext')"
LOSS = "#t=lab/char_lm&m=val_loss"


@pytest.fixture(scope="module")
def shas(page: str) -> list[str]:
    import base64
    import gzip
    import json
    import re

    text = re.search('id="commits">([^<]*)', Path(page.removeprefix("file://")).read_text())
    assert text is not None
    return list(json.loads(gzip.decompress(base64.b64decode(text[1])))["sha"])


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("browser") / "tinylab"
    page_repository.make(root)
    return f"file://{typed(['report'], root).out.strip()}"


@pytest.fixture(scope="module")
def one_browser() -> Iterator[Browser]:
    browser = Browser()
    yield browser
    browser.close()


@pytest.fixture
def browser(one_browser: Browser) -> Iterator[Browser]:
    one_browser.resize(1440, 900)
    yield one_browser
    assert one_browser.problems() == []


def test_it_opens_offline_on_what_is_worst_and_runs_nothing_foreign(
    browser: Browser, page: str, shas: list[str]
) -> None:
    browser.open(page, until=DRAWN)
    assert browser.requests() == [page]
    assert browser.run(TITLE) == "speech_kw · val_loss"
    assert shas[CRASH][:8] in browser.run("document.querySelector('#commit-title').textContent")
    log = browser.run("document.querySelector('#commit pre').textContent")
    assert page_repository.EVIL in log
    assert browser.run("window.hacked === undefined")


def test_a_card_opens_its_chart_and_back_returns(browser: Browser, page: str) -> None:
    browser.open(page, until=DRAWN)
    browser.run("document.querySelectorAll('.card a.open')[1].click()")
    browser.wait(f"{TITLE} === 'char_lm · val_loss'")
    assert "t=lab/char_lm" in browser.run("location.hash")
    assert browser.run("document.querySelectorAll('#chart .set.bad').length") == 1
    assert browser.run("document.querySelectorAll('.card.current').length") == 1
    browser.run("history.back()")
    browser.wait(f"{TITLE} === 'speech_kw · val_loss'")
    browser.press("n")
    browser.wait(f"{TITLE} === 'char_lm · val_loss'")


def test_keys_walk_the_measured_commits_and_open_one(
    browser: Browser, page: str, shas: list[str]
) -> None:
    browser.open(page + LOSS, until=DRAWN)
    browser.run("document.querySelector('#chart svg').focus()")
    browser.press("ArrowLeft")
    assert shas[COMMITS - 1][:8] in browser.run(TEXT)
    browser.press("ArrowLeft")
    assert shas[COMMITS - 2][:8] in browser.run(TEXT)
    browser.press("PageUp")
    assert shas[WORSE][:8] in browser.run(TEXT)
    browser.press("Enter")
    browser.wait(f"location.hash.includes('c={shas[WORSE]}')")
    browser.wait(
        f"document.querySelector('#commit-title').textContent.includes('{shas[WORSE][:8]}')"
    )
    assert browser.run("document.querySelectorAll('#commit .curve.bad').length") == 2
    body = browser.run("document.querySelector('#commit-body').textContent")
    assert f"{shas[WORSE - 1][:8]} compared commit" in body
    assert f"LayerNorm's eps differs {page_repository.EVIL} celedger explain A..B char_lm" in body
    assert browser.run("window.hacked === undefined")


def test_the_address_holds_the_view(browser: Browser, page: str, shas: list[str]) -> None:
    view = f"#t=lab/tabular&m=step_time&c={shas[40]}&r={shas[30]}-{shas[50]}"
    browser.open(page + view, until=DRAWN)
    assert browser.run(TITLE) == "tabular · step_time"
    ends = "svg.getAttribute('aria-valuemin') + ' ' + svg.getAttribute('aria-valuemax')"
    assert browser.run(f"(svg => {ends})(document.querySelector('#chart svg'))") == "30 50"
    assert shas[40][:8] in browser.run("document.querySelector('#commit-title').textContent")


def test_hover_tells_the_value_and_a_drag_zooms(browser: Browser, page: str) -> None:
    browser.open(page + LOSS, until=DRAWN)
    box = browser.run(
        "(() => { const b = document.querySelector('#chart svg').getBoundingClientRect();"
        "return [b.left, b.top, b.width, b.height] })()"
    )
    left, top, width, height = box
    y = top + height / 2
    browser.mouse("mouseMoved", left + 0.4 * width, y)
    tip = browser.run("document.querySelector('.tip').textContent")
    assert "±" in tip
    assert "3 trials" in tip
    assert any(name in tip for name in page_repository.AUTHORS)
    browser.drag(left + 0.5 * width, left + 0.8 * width, y)
    browser.wait("location.hash.includes('r=')")
    browser.wait("Number(document.querySelector('#chart svg').getAttribute('aria-valuemin')) > 25")
    browser.run("document.querySelector('#chart svg').focus()")
    browser.press("Escape")
    browser.wait("document.querySelector('#chart svg').getAttribute('aria-valuemin') === '0'")


def test_copy_puts_the_command_on_the_clipboard(browser: Browser, page: str) -> None:
    browser.open(page, until=DRAWN)
    browser.call("Browser.grantPermissions", permissions=["clipboardReadWrite"])
    browser.run("document.querySelector('.card .copy').scrollIntoView({block: 'center'})")
    x, y = browser.run(
        "(() => { const b = document.querySelector('.card .copy').getBoundingClientRect();"
        "return [b.left + 5, b.top + 5] })()"
    )
    browser.mouse("mousePressed", x, y, button="left")
    browser.mouse("mouseReleased", x, y, button="left")
    browser.wait("document.querySelector('.card .copy').textContent === 'Copied'")
    copied = browser.run("navigator.clipboard.readText()")
    assert re.fullmatch("celedger bisect [0-9a-f]{8}", copied)


def test_the_table_is_filtered_and_sorted(browser: Browser, page: str) -> None:
    browser.open(page, until=DRAWN)
    shown = (
        "[...document.querySelectorAll('tbody tr')].filter(r => !r.hidden).map(r => r.dataset.task)"
    )
    browser.run("document.querySelector('#changed').click()")
    assert "lab/tabular" not in browser.run(shown)
    assert "1 of 6 tasks" in browser.run("document.querySelector('#hidden-rows').textContent")
    browser.run(
        "(() => { const order = document.querySelector('#order'); order.value = 'worst';"
        "order.dispatchEvent(new Event('change')) })()"
    )
    assert browser.run(shown)[0] == "lab/speech_kw"


def test_a_phone_shows_all_without_a_sideways_scroll(browser: Browser, page: str) -> None:
    browser.resize(390, 844)
    browser.open(page + LOSS, until=DRAWN)
    assert browser.run("document.documentElement.scrollWidth") == 390
    browser.run("document.querySelector('#chart').scrollIntoView({block: 'center'})")
    x, y = browser.run(
        "(() => { const b = document.querySelector('#chart svg').getBoundingClientRect();"
        "return [b.left + b.width / 2, b.top + b.height / 2] })()"
    )
    browser.tap(x, y)
    browser.wait("location.hash.includes('c=')")
    assert browser.run("document.querySelector('.tip') !== null || location.hash.includes('c=')")


def test_no_label_of_a_chart_is_cut_on_a_phone(browser: Browser, page: str) -> None:
    """A change of the environment began left of the chart; the caption has the whole of it."""
    browser.resize(390, 844)
    browser.open(page + "#t=lab/tabular&m=step_time", until=DRAWN)
    cut = browser.run(
        "(({left, right}) => [...document.querySelectorAll('#chart text')].filter(t => {"
        "const box = t.getBoundingClientRect(); return box.left < left || box.right > right;"
        "}).map(t => t.textContent))(document.querySelector('#chart svg').getBoundingClientRect())"
    )
    assert cut == []
    caption = browser.run("document.querySelector('#drift-caption').textContent")
    assert "torch 2.12.0 → 2.13.0: +5.9 %; by code since: nothing." in caption


def test_the_labels_of_two_environments_stand_apart(browser: Browser, tmp_path: Path) -> None:
    """Packages and the suite changed within a few commits: one text lay over the other."""
    suite = '[suite]\nname = "bare"\n[metrics.loss]\ndirection = "lower"\n[[task]]\nname = "net"\n'
    with _writer(tmp_path / "two", _commits(12), suite + 'command = "false"\n') as writer:
        for i, environment in enumerate((OLD, HERE, *[ELSEWHERE] * 10)):
            writer.trial(f"c{i}", "net", {"loss": 1.0}, environment=environment)
    browser.open(f"file://{typed(['report'], tmp_path / 'two').out.strip()}", until=DRAWN)
    boxes = browser.run(
        "[...document.querySelectorAll('#chart text')].filter(t => /torch|NVIDIA|device|environ/"
        ".test(t.textContent)).map(t => t.getBoundingClientRect()).map(b => [b.left, b.right])"
    )
    assert len(boxes) == 2
    (_, first), (second, _) = sorted(boxes)
    assert first < second


def test_without_scripts_the_words_and_the_table_are_there(browser: Browser, page: str) -> None:
    text = browser.outer_html(page)
    assert "2 commits made something worse; 1 crashes" in text
    assert text.count("<tr") == 7


def test_odd_values_draw_without_an_error(browser: Browser, tmp_path: Path) -> None:
    broken(tmp_path / "broken")
    browser.open(f"file://{typed(['report'], tmp_path / 'broken').out.strip()}", until=DRAWN)
    cells = browser.run("document.querySelectorAll('td a').length")
    assert cells == 5
    for number in range(cells):
        browser.run(f"document.querySelectorAll('td a')[{number}].click()")
        browser.wait(f"document.querySelectorAll('td a')[{number}].matches('.current')")


def test_one_epoch_has_no_curve_and_no_change_has_no_sign(browser: Browser, tmp_path: Path) -> None:
    """Eight empty pictures stood beside values, and `-0.0 %`."""
    suite = '[suite]\nname = "bare"\n[metrics.loss]\ndirection = "lower"\n[[task]]\nname = "net"\n'
    with _writer(tmp_path / "one", _commits(2), suite + 'command = "false"\n') as writer:
        for i, loss in enumerate((1.0, 0.9999)):
            writer.trial(f"c{i}", "net", {"loss": loss}, curves={"loss": [loss]})
    browser.open(f"file://{typed(['report'], tmp_path / 'one').out.strip()}", until=DRAWN)
    assert browser.run("document.querySelectorAll('.epochs svg').length") == 0
    text = browser.run("document.querySelector('.epochs').textContent")
    assert "loss 0.9999" in text and " 0.0 %" in text, text


def test_a_task_that_never_reported_shows_its_crash(browser: Browser, tmp_path: Path) -> None:
    suite = '[suite]\nname = "bare"\n[[task]]\nname = "net"\ncommand = "false"\n'
    with _writer(tmp_path / "bare", _commits(3), suite) as writer:
        writer.trial("c2", "net", {}, kind=OutcomeKind.FAILED, message="exit status 1")
    browser.open(f"file://{typed(['report'], tmp_path / 'bare').out.strip()}", until=DRAWN)
    assert browser.run("document.title").startswith("1 commit crashes")
    assert "exit status 1" in browser.run("document.querySelector('#commit-body').textContent")


def test_it_prints_on_three_pages(browser: Browser, page: str) -> None:
    import base64

    browser.open(page, until=DRAWN)
    pdf = base64.b64decode(browser.call("Page.printToPDF", printBackground=True)["data"])
    assert 1 <= pdf.count(b"/Type /Page\n") <= 3
