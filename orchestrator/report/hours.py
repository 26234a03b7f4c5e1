"""What the hours of a search's trials bought, and what as many again are expected to bring."""

from orchestrator.report.findings import Findings
from orchestrator.report.next_steps import enough_results, outlook_of


def hours_text(findings: Findings) -> str:
    """`Half of its 1.24 GPU-hours came to 0.5012, the rest added 0.0128. 40 more trials of this space better the best
    by more than 0.0060 with a chance of roughly 20%; they take about 1.24 GPU-hours.`

    GPU-hours where trials have any, else CPU-hours; of trials in the order in which they ended, without final runs. The
    chance is `Outlook`'s, where the results are enough to judge the space: no size is expected of the improvement, as
    none is checked. Empty with two objectives, or where nothing had ended in the first half.
    """
    ledger = findings.ledger
    kind = "GPU" if ledger.hours["GPU"] else "CPU"
    total, spent, values = ledger.hours[kind], 0.0, list[float]()
    first: float | None = None
    can_win = {trial.trial_id for trial in ledger.candidates()}
    ended = [trial for trial in ledger.trials.values() if trial.ended_at is not None]
    for trial in sorted(ended, key=lambda trial: trial.ended_at or 0):
        spent += trial.hours.get(kind, 0.0)
        if trial.trial_id in can_win and trial.best is not None:
            values.append(trial.best)
        if spent <= total / 2 and values:
            first = ledger.best_of(values)
    if first is None or not total or ledger.second is not None:
        return ""
    added = abs(ledger.best_of(values) - first)
    text = f"Half of its {total:.3g} {kind}-hours came to {first:.4f}, the rest added {added:.4f}."
    outlook = outlook_of(findings) if len(can_win) >= enough_results(findings) else None
    if outlook is None or ledger.kind != "search":
        return text
    again = total * outlook.more / len(can_win)
    return f"{text} {outlook.text}; they take about {again:.3g} {kind}-hours."
