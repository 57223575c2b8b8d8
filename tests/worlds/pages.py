"""Pages in a browser."""

from __future__ import annotations

from limits import WAIT_S


def patient(page):
    """The page, whose answers are waited for as long as a busy machine needs."""
    page.set_default_timeout(1000 * WAIT_S)
    return page


def drawn(page) -> None:
    """Wait until the page has drawn what was changed."""
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
