"""A page in a real browser."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from support.made_pages import CHROMIUM


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    if CHROMIUM is None:
        pytest.skip("needs chromium")
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])


DRAWN = "() => [...document.querySelectorAll('.plot')].every((node) => node.dataset.drawn || !node.checkVisibility())"


def until(tab: Any, expected: Any, script: str, *of: Any, seconds: float = 30) -> None:
    """Wait until a script's answer is what is expected: figures are drawn one after the other."""
    end = time.monotonic() + seconds
    while (found := tab.evaluate(script, *of)) != expected and time.monotonic() < end:
        tab.wait_for_timeout(50)
    assert found == expected


def opened(browser: Any, address: str, said: list[str], **options: Any) -> Any:
    tab = browser.new_page(**({"viewport": {"width": 1400, "height": 900}} | options))
    tab.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.goto(address)
    tab.wait_for_function(DRAWN, timeout=120_000)
    tab.evaluate("() => document.querySelectorAll('details').forEach((part) => { part.open = true })")
    tab.wait_for_function(DRAWN, timeout=120_000)  # and those that are drawn when they are unfolded
    return tab
