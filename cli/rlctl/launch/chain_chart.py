"""The chart of a chain's report: what each policy can do, and what reward it got for how far it went from SFT."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlctl.launch.chain_view import POLICIES

#: Colours that colour-blind people can tell apart (Okabe and Ito 2008).
COLOURS = {"base": "#7F7F7F", "sft": "#0072B2", "ppo": "#D55E00", "dpo": "#009E73"}


def draw(path: Path, summary: Mapping[str, Any]) -> None:
    """Writes the PNG. Without labels there are no right answers, and the bars show the reward."""
    import matplotlib as mpl

    mpl.use("Agg", force=False)
    from matplotlib.figure import Figure

    policies = summary["policies"]
    figure = Figure(figsize=(9.6, 3.8), dpi=140, layout="constrained")
    left, right = figure.subplots(1, 2)
    _bars(left, policies)
    _plane(right, [one for one in policies if one["policy"] != "base"])
    figure.suptitle(f"{summary['run']}: {policies[0]['prompts']} held-out prompts, seed {summary['seed']}")
    figure.savefig(path)


def _bars(panel: Any, policies: list[dict[str, Any]]) -> None:
    key = "accuracy" if policies[0]["accuracy"] is not None else "reward"
    names = [POLICIES[one["policy"]] for one in policies]
    values = [one[key] for one in policies]
    bars = panel.bar(names, values, color=[COLOURS[one["policy"]] for one in policies], width=0.6)
    panel.bar_label(bars, fmt="%.2f", padding=2)
    panel.set_title("Right answers, greedy" if key == "accuracy" else "Reward, greedy")
    if key == "accuracy":
        panel.set_ylim(0, 1.08)
    _plain(panel)


def _plane(panel: Any, policies: list[dict[str, Any]]) -> None:
    """The untrained model is left out: it lies so far from SFT that the others would be one point."""
    for one in policies:
        at = (one["kl"], one["sampled_reward"])
        panel.scatter(*at, s=70, color=COLOURS[one["policy"]], zorder=3)
        panel.annotate(POLICIES[one["policy"]], at, xytext=(8, -3), textcoords="offset points")
    panel.margins(x=0.18, y=0.18)
    panel.set_title("Reward of samples, by distance from SFT")
    panel.set_xlabel("KL from SFT, nats a response")
    panel.set_ylabel("mean reward, trained reward model")
    _plain(panel)


def _plain(panel: Any) -> None:
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(axis="y", alpha=0.3)
    panel.set_axisbelow(True)
