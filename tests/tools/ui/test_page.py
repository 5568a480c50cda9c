"""The page of `flowrl ui` in a browser."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.parts import SMALL, flowrl, served

pytestmark = pytest.mark.needs("playwright")

#: A name, and a picture of a plan, of somebody else's.
EVIL = "<img src=x onerror=alert(1)>"
EVIL_PLAN = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9" onload="alert(2)"><script>alert(3)</script>
<style>body{display:none}</style><foreignObject><form id="stolen"></form></foreignObject>
<a href="javascript:alert(4)"><text class="name">link</text></a><g data-path="Rollouts" onclick="alert(5)">
<rect x="1" y="1" width="5" height="5" style="display:none"/><image href="https://example.com/x.png"/></g></svg>"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of DQN, one of 10,000 results, and one that somebody else has made."""
    folder = tmp_path_factory.mktemp("runs")
    done = flowrl("run", "dqn", *SMALL, "--stop-steps", 600, "--set", "report_every=100", "--out", folder / "dqn")
    assert done.exit_code == 0, done.output
    for name in ("long", EVIL):
        shutil.copytree(folder / "dqn", folder / name)
    results = [{"env_steps": 10 * i, "episode_return": float(i % 100), "policy_lag": i % 7} for i in range(10_000)]
    (folder / "long" / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in results))
    (folder / EVIL / "plan.svg").write_text(EVIL_PLAN)
    profile = json.loads((folder / EVIL / "profile.json").read_text())
    profile["stalls"] = [f"{EVIL}: waits (7 s)"]
    (folder / EVIL / "profile.json").write_text(json.dumps(profile))
    (folder / EVIL / "summary.json").unlink()
    return folder


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    with served(folder) as server:
        yield f"http://localhost:{server.server_port}/"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium: the system's, or the one that `playwright install chromium` brings."""
    from playwright.sync_api import sync_playwright

    found = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), None)
    with sync_playwright() as playwright:
        if found is None and not Path(playwright.chromium.executable_path).exists():
            pytest.skip("there is no Chromium; install one, or: playwright install chromium")
        made = playwright.chromium.launch(executable_path=found)
        yield made
        made.close()


@pytest.fixture(params=[(1440, 900, "light"), (360, 740, "dark")], ids=["wide", "narrow"])
def page(request: pytest.FixtureRequest, browser: Any, address: str) -> Iterator[Any]:
    """The page with its runs, of which nothing may go wrong."""
    width, height, scheme = request.param
    made = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
    wrong: list[str] = []
    made.on("console", lambda message: wrong.append(message.text) if loud(message) else None)
    made.on("pageerror", lambda error: wrong.append(str(error)))
    made.on("dialog", lambda dialog: wrong.append(dialog.message))
    made.on("request", lambda asked: None if asked.url.startswith((address, "data:,")) else wrong.append(asked.url))
    made.goto(address)
    expect(made.locator("#runs tbody tr")).to_have_count(3)
    yield made
    assert wrong == []
    made.close()


def loud(message: Any) -> bool:
    """Whether the browser complains, but for style and handlers in somebody else's picture, which the page's policy
    refuses."""
    refused = "Applying inline style violates", "Executing inline event handler violates"
    return message.type in ("error", "warning") and not message.text.startswith(refused)


def expect(locator: Any) -> Any:
    """What the page is to show within some seconds."""
    from playwright.sync_api import expect

    expect.set_options(timeout=30_000)
    return expect(locator)


def choose(page: Any, name: Path) -> None:
    page.get_by_role("button", name=str(name), exact=True).click()
    expect(page.locator("#run-title")).to_have_text(f"Run {name}")


def test_a_plan_is_coloured_by_what_its_operators_did(page: Any, folder: Path) -> None:
    """In words and patterns, too, and with rates on its edges; a table has the same."""
    choose(page, folder / "dqn")
    shown = page.locator("#plan [data-path='train.TrainOneStep']")
    expect(shown).to_have_class(re.compile("^is-(busy|starved)$"))
    expect(shown.locator(".badge-text")).to_contain_text(shown.get_attribute("class").removeprefix("is-"))
    expect(shown.locator(".rate")).to_contain_text("/s")
    expect(page.locator("#operators tbody tr")).to_have_count(page.locator("#plan [data-path]").count())
    expect(page.locator("#operators tbody")).to_contain_text("of 50,000")
    expect(page.locator("#sentence")).to_contain_text("Bottleneck: ")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "only parts of it scroll sideways"


def test_curves_of_ten_thousand_results_and_their_lags(page: Any, folder: Path) -> None:
    choose(page, folder / "long")
    expect(page.locator(".chart .curve")).not_to_have_count(0)
    points = [curve.get_attribute("d").count("L") for curve in page.locator(".chart .curve").all()]
    assert 300 < max(points) < 600
    expect(page.locator("#lags .bars rect")).to_have_count(7)
    expect(page.locator("#lags figcaption")).to_have_text("policy_lag")


def test_it_can_be_used_by_keyboard(page: Any, folder: Path) -> None:
    choose(page, folder / "long")
    page.get_by_role("button", name=str(folder / "dqn"), exact=True).focus()
    page.keyboard.press("Enter")
    expect(page.locator("#run-title")).to_have_text(f"Run {folder / 'dqn'}")
    chart = page.locator(".chart").first
    chart.focus()
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#charts figcaption").first).to_contain_text(", at ")
    expect(chart).to_have_attribute("aria-label", re.compile("env_steps .*: "))
    assert all(part.get_attribute("tabindex") == "0" for part in page.locator(".scrolled").all())


def test_what_comes_from_a_run_is_text(page: Any, folder: Path) -> None:
    """E7: its name, its stalls, its picture: no script, no style, no link, nothing from elsewhere."""
    choose(page, folder / EVIL)
    expect(page.locator("#plan [data-path]")).to_have_count(1)
    expect(page.locator("#plan").locator("script,style,a,image,foreignObject,form")).to_have_count(0)
    names = page.locator("#plan *").evaluate_all("all => all.flatMap(each => each.getAttributeNames())")
    assert not [name for name in names if name.startswith("on") or name in ("style", "href")]
    expect(page.locator("#stalls p")).to_have_text(f"Waits: {EVIL}: waits (7 s)")
    expect(page.locator("img")).to_have_count(0)


def test_new_results_appear(page: Any, folder: Path) -> None:
    """By the page's own questions, every few seconds."""
    file = folder / "long" / "metrics.jsonl"
    before = file.read_text()
    choose(page, folder / "long")
    with file.open("a") as results:
        results.write('{"env_steps": 200000, "episode_return": 4321.0}\n')
    expect(page.locator("#episodes")).to_contain_text("4,321")
    expect(page.locator("#charts")).to_contain_text("4,321")
    file.write_text(before)
