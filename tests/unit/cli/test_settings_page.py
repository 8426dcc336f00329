"""The page of settings is written from the settings models."""

from __future__ import annotations

from pathlib import Path

from rlctl.cli.settings import page


def test_the_page_is_written_from_the_models() -> None:
    written = Path(__file__).parents[3] / "docs" / "settings.md"
    assert written.read_text(encoding="utf-8") == page(), "run make docs"
