"""Headless Chromium."""

import os
import shutil

import pytest
from playwright import sync_api


@pytest.fixture(scope="session")
def browser():
    names = ("chromium", "chromium-browser", "google-chrome")
    program = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def open_page(browser):
    """open_page(path, viewport, **options) -> the loaded page; checks at the end that there were no errors and no
    requests."""
    contexts, messages, requests, paths = [], [], [], set()

    def open_page(path, viewport, **options):
        contexts.append(browser.new_context(viewport=viewport, **options))
        page = contexts[-1].new_page()
        page.on("console", lambda message: messages.append(message.text))
        page.on("pageerror", lambda error: messages.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(path.as_uri())
        paths.add(path.as_uri())
        return page

    yield open_page
    assert messages == []
    assert {url for url in requests if not url.startswith("data:")} == paths
    for context in contexts:
        context.close()
