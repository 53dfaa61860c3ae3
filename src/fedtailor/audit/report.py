"""The report of an audit: JSON for programs, Markdown for people."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

from torch import Tensor

from fedtailor.audit.audit_client import Audit, Leak
from fedtailor.core.errors import writing
from fedtailor.storage.files import write_bytes


def write_report(folder: Path, audit: Audit) -> list[Path]:
    """Write report.json and report.md."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    files = {
        folder / "report.json": json.dumps(to_json(audit), indent=1),
        folder / "report.md": compose_text(audit),
    }
    for path, text in files.items():
        write_bytes(path, text.encode())
    return list(files)


def to_json(audit: Audit) -> dict[str, Any]:
    """All numbers of an audit, without pictures."""
    values: dict[str, Any] = _without_tensors(dataclasses.asdict(audit))
    return values


def _without_tensors(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {k: v for k, v in value.items() if not isinstance(v, Tensor)}
        return {k: _without_tensors(v) for k, v in kept.items()}
    if isinstance(value, list | tuple):
        return [_without_tensors(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def compose_text(audit: Audit) -> str:
    """The report in Markdown."""
    lines = [
        f"# Audit of client {audit.client}: {audit.method} on {audit.data}, seed {audit.seed}",
        "",
        "The attacker is the server, or whoever reads what it receives. It knows the code, the",
        "network, and learning rate, steps, batch and number of examples of the local training.",
        "",
    ]
    for leak in audit.leaks:
        lines += describe_leak(leak)
    lines += describe_findings(audit)
    lines += describe_shares(audit)
    lines += describe_membership(audit)
    for name, why in audit.not_applicable.items():
        lines += [f"Not applicable: {name}: {why}.", ""]
    spent = ", ".join(f"{name} {s:.0f} s" for name, s in audit.seconds.items())
    lines += [f"Time: {spent}.", ""]
    return "\n".join(lines)


def describe_leak(leak: Leak) -> list[str]:
    """The table of gradient attacks on one upload."""
    lines = [
        f"## Gradient leakage: the client {leak.victim} ({leak.examples} examples)",
        "",
        "The local training is simulated step for step on candidate images; the pseudo views take",
        "the whole change for one gradient. For orientation: a search begins at"
        f" {leak.noise:.1f} dB, a plain grey",
        f"picture has {leak.grey:.1f} dB. Above 20 dB an image is plainly recognised."
        f" Searches: {leak.iterations} iterations, {leak.restarts} starts.",
        "",
        "| attack | the attacker's view | PSNR, dB | best image | SSIM | labels right |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for found in leak.outcomes:
        likeness = "" if found.ssim is None else f"{found.ssim:.2f}"
        lines.append(
            f"| {found.attack} | {found.view}: {found.about} | {found.psnr:.1f}"
            f" | {found.best_psnr:.1f} | {likeness} | {100 * found.labels_right:.0f} % |"
        )
    lines += ["", *[f"Not applicable: {text}." for text in leak.skipped], ""]
    return lines


def describe_findings(audit: Audit) -> list[str]:
    """What follows by algebra."""
    if audit.findings is None:
        return []
    lines = ["## By algebra", ""]
    if not audit.findings:
        lines += ["Nothing private is known to follow from an upload exactly.", ""]
    for finding in audit.findings:
        word = "recovered" if finding.is_found else "not recovered"
        lines += [
            f"**{finding.name}**: {word}, {finding.measure} {finding.error:.2g}"
            f" ({finding.how}).",
            "",
        ]
        if finding.truth:
            lines += [
                f"- recovered: {_numbers(finding.recovered)}",
                f"- true: {_numbers(finding.truth)}",
                "",
            ]
    return lines


def describe_shares(audit: Audit) -> list[str]:
    """Property inference."""
    found = audit.shares
    if found is None:
        return []
    right = "right" if found.is_majority_right else "wrong"
    return [
        "## Property inference: class shares",
        "",
        f"From the upload ({found.view}) and public data of every class:"
        f" {100 * found.error:.0f} % of the examples misplaced; a blind guess misplaces"
        f" {100 * found.blind_error:.0f} %. The largest class is told {right}.",
        "",
        f"- estimated: {_numbers(found.estimated)}",
        f"- true: {_numbers(found.truth)}",
        "",
    ]


def describe_membership(audit: Audit) -> list[str]:
    """Membership inference."""
    if audit.membership is None:
        return []
    lines = [
        f"## Membership inference, after {audit.rounds_of_models} rounds",
        "",
        "AUC 0.5 is guessing. With fewer than 100 non-members, 1 % false positives are none.",
        "",
        "| model | attack | AUC | TPR at 1 % FPR | members | others |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for score in audit.membership:
        lines.append(
            f"| {score.model} | {score.attack} | {score.auc:.3f} | {score.tpr:.3f}"
            f" | {score.members} | {score.others} |"
        )
    return [*lines, ""]


def _numbers(values: list[float]) -> str:
    return " ".join(f"{value:.3g}" for value in values)
