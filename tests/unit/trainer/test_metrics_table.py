"""The page of metrics is the table, and the table knows names with a free part."""

from __future__ import annotations

from pathlib import Path

from rlctl.trainer.metrics_table import markdown, meaning


def test_the_page_is_written_from_the_table():
    page = Path(__file__).parents[3] / "docs" / "metrics.md"
    assert page.read_text() == markdown(), "run make docs"


def test_names_with_a_free_part():
    assert meaning("reward/component/format") == meaning("reward/component/*")
    assert meaning("reward/nonsense") is None
