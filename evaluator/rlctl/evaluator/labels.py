"""Words of the report in Chinese and English."""

from __future__ import annotations

from typing import Literal

Language = Literal["zh", "en"]

LABELS: dict[str, tuple[str, str]] = {
    "distinguishes": ("区分思考与答案", "Tells thought from answer"),
    "switches": ("能在A、B间切换", "Switches between A and B"),
    "a_right": ("A 正确", "A right"),
    "b_right": ("B 正确", "B right"),
    "both_right": ("A、B 均正确", "Both right"),
    "both_right_given_switch": ("切换时均正确", "Both right if it switches"),
    "both_right_given_no_switch": ("不切换时均正确", "Both right if it does not"),
    "a_right_rules": ("A 正确（规则）", "A right (rules)"),
    "b_right_rules": ("B 正确（规则）", "B right (rules)"),
    "both_right_rules": ("均正确（规则）", "Both right (rules)"),
    "ratio": ("P(均正确|切换) / P(均正确)", "P(both right | switch) / P(both right)"),
    "title": ("双题评测结果", "Evaluation of two-problem outputs"),
    "share": ("占比（95% 区间）", "Share (95 % interval)"),
    "measure": ("指标", "Measure"),
    "data_set": ("数据集", "Data set"),
    "records": ("记录数", "Records"),
    "unscored": ("未评", "Unscored"),
    "interval": ("95% 区间", "95 % interval"),
    "value": ("值", "Value"),
    "yes": ("是", "Yes"),
    "no": ("否", "No"),
    "n": ("n", "n"),
    "judge": ("评审", "Judge"),
    "rules": ("规则", "Rules"),
    "agreement": ("一致率", "Agreement"),
    "kappa": ("Cohen κ", "Cohen's kappa"),
    "base_rates": ("正例率", "Base rates"),
    "judge_and_rules": ("评审与规则（单个答案）", "Judge and rules (single answers)"),
    "different": ("不一致的记录", "Records that differ"),
    "swap": ("交换A、B后的稳定性", "Stability when A and B are swapped"),
    "judges": ("评审之间", "Between judges"),
    "gold": ("标准答案匹配", "Gold answers"),
    "bad_rows": ("无法使用的行", "Rows that could not be used"),
    "file": ("文件", "File"),
    "line": ("行", "Line"),
    "reason": ("原因", "Reason"),
    "summary": ("汇总", "Summary"),
    "id": ("编号", "Id"),
    "prompt": ("提示", "Prompt"),
    "output": ("输出", "Output"),
    "gold_a": ("A 标准答案", "Gold A"),
    "gold_b": ("B 标准答案", "Gold B"),
    "extracted_a": ("A 规则所取", "A read by rules"),
    "extracted_b": ("B 规则所取", "B read by rules"),
    "judge_reason": ("评审理由", "Judge's reason"),
    "status": ("状态", "Status"),
    "stopped": ("已停止", "Stopped"),
    "all_sets": ("全部", "All"),
    "no_data": ("无数据", "no data"),
    "cut": ("…[已截断]", "…[cut]"),
    "cost": ("费用", "Cost"),
    "tokens": ("词元", "tokens"),
    "cached": ("命中缓存", "cached"),
    "new": ("新输入", "new"),
    "written": ("输出", "written"),
    "prices_of": ("价格日期", "prices of"),
    "calls": ("调用", "calls"),
    "from_journal": ("日志中已有", "found in the journal"),
    "repeated": ("中断后重复", "repeated after a kill"),
    "retries": ("重试", "retries"),
    "accuracy": ("正确率", "Accuracy"),
    "right": ("正确", "Right"),
    "answer": ("标准答案", "Gold answer"),
    "extracted": ("所取答案", "Answer read"),
    "single_title": ("单题评测结果", "Evaluation of single problems"),
    "samples": ("样本数", "Samples"),
    "problems": ("题目数", "Problems"),
}


def label(name: str, language: Language) -> str:
    """The word for a name; the name itself for a measure of one's own."""
    words = LABELS.get(name)
    if words is None:
        return name
    return words[0] if language == "zh" else words[1]
