"""The chart: shares with their intervals, data sets side by side, readable at a glance."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlctl.evaluator.labels import Language, label
from rlctl.evaluator.records import TOTAL

#: Fonts with Chinese characters, the first installed one is used.
CJK_FONTS = (
    "Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans SC", "Source Han Sans SC", "Source Han Sans CN",
    "WenQuanYi Micro Hei", "WenQuanYi Zen Hei", "Microsoft YaHei", "PingFang SC", "SimHei", "Heiti SC",
)  # fmt: skip

#: Colours that colour-blind people can tell apart (Okabe and Ito 2008).
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#7F7F7F")
#: More data sets than this make several rows of panels; far more are drawn as one.
_SETS_A_PANEL, _MOST_SETS = 8, 32


_CJK_FILE = re.compile(r"NotoSansCJK|NotoSansSC|SourceHanSans|wqy-|msyh|simhei|PingFang", re.I)


def cjk_font() -> str | None:
    """Name of an installed font with Chinese characters, or None."""
    from matplotlib import font_manager

    manager = font_manager.fontManager
    if not any(font.name in CJK_FONTS for font in manager.ttflist):
        # matplotlib keeps a list of fonts from its first start; one installed since is not on it.
        for path in font_manager.findSystemFonts():
            if _CJK_FILE.search(Path(path).name) and not re.search("Light|Medium|Thin|Black", path):
                manager.addfont(path)
    installed = {font.name for font in manager.ttflist}
    return next((name for name in CJK_FONTS if name in installed), None)


def draw(path: Path, summary: dict[str, Any], measures: Sequence[str], language: Language) -> Language:
    """Writes the PNG; returns the language of its labels: English where no Chinese font is installed."""
    import matplotlib as mpl

    mpl.use("Agg", force=False)
    from matplotlib.figure import Figure

    font = cjk_font()
    language = language if font else "en"
    names = [name for name in summary["data_sets"] if name != TOTAL]
    if not 0 < len(names) <= _MOST_SETS:
        names = [TOTAL]
    chunks = [names[begin : begin + _SETS_A_PANEL] for begin in range(0, len(names), _SETS_A_PANEL)]
    families = [font, "DejaVu Sans"] if font else ["DejaVu Sans"]
    with mpl.rc_context({"font.family": families, "axes.unicode_minus": False}):
        heights = [max(3.2, 1.4 + len(measures) * (0.28 + 0.24 * len(chunk))) for chunk in chunks]
        figure = Figure(figsize=(9.6, sum(heights)), dpi=140, layout="constrained")
        panels = figure.subplots(len(chunks), 1, squeeze=False, height_ratios=heights)[:, 0]
        title = label("title" if summary["mode"] == "pair" else "single_title", language)
        figure.suptitle(title, fontsize=15, fontweight="bold")
        drawable = _characters(families)
        for panel, chunk in zip(panels, chunks, strict=True):
            shown = [_shown(label("all_sets", language) if name == TOTAL else name, drawable) for name in chunk]
            _panel(panel, [summary["data_sets"][name] for name in chunk], shown, measures, language)
        figure.savefig(path)
    return language


def _characters(families: Sequence[str]) -> set[int]:
    """Code points that the fonts can draw."""
    from matplotlib import font_manager

    paths = [font_manager.findfont(family) for family in families]
    return {code for path in paths for code in font_manager.get_font(path).get_charmap()}


def _panel(
    axes: Any, entries: Sequence[Any], names: Sequence[str], measures: Sequence[str], language: Language
) -> None:
    thick = 0.8 / len(names)
    for index, (name, entry) in enumerate(zip(names, entries, strict=True)):
        colour = _COLOURS[index % len(_COLOURS)]
        for row, measure in enumerate(measures):
            y = row + (index - (len(names) - 1) / 2) * thick
            _bar(axes, y, thick, entry["measures"].get(measure) or {}, colour, language)
        axes.barh(0, 0, color=colour, label=f"{name}  (n = {entry['records']})")
    axes.set_yticks(range(len(measures)), [label(measure, language) for measure in measures], fontsize=11)
    axes.set_ylim(len(measures) - 0.5, -0.5)
    axes.set_xlim(0, 1.0)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1.0], ["0 %", "25 %", "50 %", "75 %", "100 %"])
    axes.set_xlabel(label("share", language), fontsize=10)
    axes.grid(axis="x", color="#dddddd", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.legend(
        loc="upper center", bbox_to_anchor=(0.5, -0.09 if len(measures) > 3 else -0.2), ncols=_columns(names),
        frameon=False, fontsize=10,
    )  # fmt: skip


def _bar(axes: Any, y: float, thick: float, entry: dict[str, Any], colour: str, language: Language) -> None:
    value, n = entry.get("value"), entry.get("n", 0)
    size = 9 if thick > 0.25 else 7
    if value is None:
        axes.text(0.01, y, label("no_data", language), va="center", fontsize=size, color="#888888", style="italic")
        return
    axes.barh(y, value, height=thick * 0.9, color=colour)
    low, high = max(0.0, value - entry["low"]), max(0.0, entry["high"] - value)
    axes.errorbar(value, y, xerr=[[low], [high]], color="#333333", capsize=2.5, linewidth=1.1)
    counts = f"{entry['yes']}/{n}" if "yes" in entry else f"n = {n}"
    beside = axes.get_yaxis_transform()
    axes.text(
        1.015, y, f"{value:.0%}", transform=beside, va="center", fontsize=size + 1, fontweight="bold", color="#222222"
    )
    axes.text(1.085, y, counts, transform=beside, va="center", fontsize=size, color="#555555")


def _columns(names: Sequence[str]) -> int:
    """Columns of the legend that fit into the figure's width."""
    longest = max(sum(2 if char >= "\u1100" else 1 for char in name) for name in names)
    return max(1, min(3, len(names), 100 // (longest + 16)))


def _shown(name: str, drawable: set[int]) -> str:
    """A data set's name, shortened in its middle; what the fonts would draw as boxes is a question mark."""
    name = "".join(char if char.isprintable() and ord(char) in drawable else "?" for char in name)
    name = name if len(name) <= 32 else f"{name[:15]}…{name[-15:]}"
    return name.replace("$", r"\$")
