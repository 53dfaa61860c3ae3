"""The page of a report, as a person sees it in a real browser, and as a file."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import fedtailor
from fedtailor.core.errors import UserError
from fedtailor.report.html_report import LARGEST, embed_json, write_report

PHONE = {"width": 390, "height": 844}
DESK = {"width": 1280, "height": 900}


def open_page(browser: Any, path: Path, **options: Any) -> tuple[Any, list[str]]:
    """The page, and everything that it asked for or complained about."""
    page = browser.new_context(**{"viewport": DESK, **options}).new_page()
    seen: list[str] = []
    page.on("request", lambda request: seen.append(request.url))
    page.on("pageerror", lambda error: seen.append(f"error: {error}"))
    page.on("console", lambda line: seen.append(f"{line.type}: {line.text}"))
    page.goto(path.as_uri())
    page.wait_for_selector("#cost-seconds svg")
    return page, seen


def read_data(path: Path) -> Any:
    """What is embedded in the page."""
    text = path.read_text(encoding="utf-8")
    found = re.search(r'<script id="data"[^>]*>(.*?)</script>', text, re.DOTALL)
    assert found
    return json.loads(found[1])


def count(page: Any, selector: str) -> int:
    return int(page.locator(selector).count())


# ---------------------------------------------------------------- in the browser


def test_a_comparison_is_seen(
    browser: Any, page_of_comparison: Path, screenshots: Path
) -> None:
    """Sentence, sections in order, and a mark for everything that was measured."""
    page, seen = open_page(browser, page_of_comparison)
    assert seen == [page_of_comparison.as_uri()]  # nothing else, and no complaint
    sentence = page.inner_text("h1")
    assert sentence == read_data(page_of_comparison)["headline"]["sentence"]
    assert "training alone" in sentence and "95 % interval" in sentence
    sections = page.eval_on_selector_all("section", "all => all.map(one => one.id)")
    expected = "gains leaderboard curves clients fairness data cost privacy"
    assert sections == [*expected.split(), "warnings", "settings"]
    assert (
        count(page, "#gains-0 .client circle") == 2 * 2 * 4
    )  # methods, seeds, clients
    assert (
        count(page, "#curves-accuracy path[aria-label], #curves-accuracy .curve path")
        == 3
    )
    assert count(page, "#heat .cell rect") == 4 * 3  # clients, rounds
    assert count(page, "#leaderboard .wide:first-of-type tbody tr") == 3
    assert "FedPer" in page.inner_text("#leaderboard")
    page.screenshot(path=screenshots / "comparison.png", full_page=True)


def test_a_series_is_switched_off_everywhere(
    browser: Any, page_of_comparison: Path
) -> None:
    page, _ = open_page(browser, page_of_comparison)
    button = page.locator('#legend [data-method="fedper"]')
    dots = "#gains-0 .client circle"
    before = count(page, dots)
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert count(page, dots) == before / 2
    assert count(page, "#curves-accuracy .curve path") == 2
    assert "FedPer" not in page.inner_text("#leaderboard tbody >> nth=0")
    button.click()
    assert count(page, dots) == before


def test_hovering_shows_values_and_headings_sort(
    browser: Any, page_of_comparison: Path
) -> None:
    page, _ = open_page(browser, page_of_comparison)
    page.locator("#curves-accuracy svg").scroll_into_view_if_needed()
    box = page.locator("#curves-accuracy svg").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    tip = page.locator('#curves-accuracy [aria-label="tip"]')
    assert "round" in tip.text_content() and "%" in tip.text_content()
    first = "#leaderboard tbody >> nth=0"
    heading = page.locator("#leaderboard th button >> nth=1")
    heading.click()
    best = page.inner_text(first)
    heading.click()
    assert page.inner_text(first) != best
    assert page.locator('#leaderboard th[aria-sort="ascending"]').count() == 1


def test_it_is_read_on_a_phone_and_in_the_dark(
    browser: Any, page_of_comparison: Path, page_of_run: Path, screenshots: Path
) -> None:
    for name, path in (("comparison", page_of_comparison), ("run", page_of_run)):
        page, _ = open_page(browser, path, viewport=PHONE, color_scheme="dark")
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= PHONE["width"], "it scrolls sideways"
        colour = "getComputedStyle(document.body).backgroundColor"
        dark = page.evaluate(colour)
        assert dark == "rgb(18, 22, 27)"
        page.screenshot(path=screenshots / f"{name}-phone-dark.png", full_page=True)
        page.click("#theme")
        assert page.evaluate(colour) != dark


def test_the_keyboard_reaches_everything(
    browser: Any, page_of_comparison: Path
) -> None:
    page, _ = open_page(browser, page_of_comparison)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the result"
    reached = set()
    for _ in range(120):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate(
                "document.activeElement.getAttribute('data-method')"
                " || document.activeElement.textContent.slice(0, 12)"
            )
        )
    assert {"local", "fedavg", "fedper", "Numbers", "SVG", "CSV"} <= reached
    page.locator('#legend [data-method="local"]').focus()
    page.keyboard.press("Enter")
    assert count(page, '#legend [aria-pressed="false"]') == 1


def test_figures_and_data_are_downloaded(
    browser: Any, page_of_comparison: Path, tmp_path: Path
) -> None:
    page, _ = open_page(browser, page_of_comparison)
    for ending, begins in (("SVG", "<svg"), ("CSV", "method,"), ("PNG", None)):
        with page.expect_download() as download:
            page.locator(f"#fairness-clients .actions >> text={ending}").click()
        path = tmp_path / ending
        download.value.save_as(path)
        if begins:
            assert path.read_text().startswith(begins)
        else:
            assert path.read_bytes().startswith(b"\x89PNG")


def test_a_single_run_says_what_is_missing_in_a_line(
    browser: Any, page_of_run: Path, screenshots: Path
) -> None:
    page, seen = open_page(browser, page_of_run)
    assert len(seen) == 1
    assert page.inner_text("h1").startswith("FedCP's personal models are right in")
    text = page.inner_text("main")
    assert "Clients that train alone are not among these runs" in text
    assert "1 client joins" in text and "its reply got lost (--drop)" in text
    assert "Personal share of the features (PIR)" in text
    assert count(page, "#gains, #legend button") == 0
    empty = "all => all.filter(one => !one.querySelector('svg, .chip')).length"
    assert page.eval_on_selector_all("figure", empty) == 0
    page.get_by_role("button", name="after training").first.click()
    assert count(page, "#curves-accuracy .curve path") == 1
    page.screenshot(path=screenshots / "run.png", full_page=True)


def test_names_with_markup_stay_text(
    browser: Any, single: Path, tmp_path: Path
) -> None:
    evil = (
        "</script><script>document.title='caught'</script><img src=x onerror=alert(1)>"
    )
    folder = tmp_path / "run"
    shutil.copytree(single, folder)
    result = json.loads((folder / "result.json").read_text())
    result |= {"data": evil, "remarks": [evil]}
    (folder / "result.json").write_text(json.dumps(result))
    path = write_report([folder], tmp_path / "evil.html", title=evil)
    page, seen = open_page(browser, path)
    assert len(seen) == 1 and page.title() == evil
    assert evil in page.inner_text("main")
    assert count(page, "img") == 0


# ---------------------------------------------------------------- the file


def test_the_file_holds_everything_it_shows(page_of_comparison: Path) -> None:
    text = page_of_comparison.read_text(encoding="utf-8")
    assert "Copyright 2010-2026 Mike Bostock" in text and "Observable, Inc." in text
    head = text[: text.index('<script id="data"')]
    assert not re.search(r"(?:src|href)=\"(?!#|data:)", head)
    assert "default-src 'none'" in head


def test_thirty_runs_are_below_three_megabytes(
    comparison: Path, tmp_path: Path
) -> None:
    """Ten methods, three seeds, a hundred rounds, twenty clients: as large as comparisons get."""
    source = comparison / "fedper-s0"
    (line,) = (source / "rounds.jsonl").read_text().splitlines()[:1]
    record = json.loads(line)
    record["evaluation"]["clients"] = {str(k): 0.123456 for k in range(20)}
    lines = [json.dumps({**record, "t": t}) + "\n" for t in range(1, 101)]
    for i in range(30):
        folder = tmp_path / "cmp" / str(i)
        shutil.copytree(source, folder)
        config = (folder / "config.toml").read_text()
        config = config.replace("lr = 0.1", f"lr = 0.{1 + i // 3}")
        (folder / "config.toml").write_text(config)
        result = json.loads((folder / "result.json").read_text())
        (folder / "result.json").write_text(json.dumps({**result, "seed": i % 3}))
        (folder / "rounds.jsonl").write_text("".join(lines))
    path = fedtailor.report(tmp_path / "cmp", out=tmp_path / "large.html")
    assert len(read_data(path)["methods"]) >= 9
    assert path.stat().st_size < LARGEST


def test_unreadable_folders_are_told(
    single: Path, comparison: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="there is no folder"):
        write_report([tmp_path / "none"], tmp_path / "r.html")
    with pytest.raises(UserError, match="neither a run nor a comparison"):
        write_report([tmp_path], tmp_path / "r.html")
    folder = tmp_path / "cmp"
    shutil.copytree(comparison / "local-s0", folder / "local-s0")
    shutil.copytree(single, folder / "half")
    (folder / "half/result.json").unlink()
    with pytest.raises(UserError, match="not finished: go on with --resume"):
        write_report([folder / "half"], tmp_path / "r.html")
    data = read_data(write_report([folder], tmp_path / "r.html"))
    assert any("is not finished" in text for text in data["messages"]["warnings"])


def test_json_cannot_leave_its_element() -> None:
    text = embed_json({"</script>": "<!--\u2028", "nan": float("nan")})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"</script>": "<!--\u2028", "nan": None}
