"""A model as a folder: tensors, graph, facts, and a card for people."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable
from pathlib import Path

from safetensors.torch import save as save_safetensors
from torch import Tensor
from torch.export import ExportedProgram

from fedtailor.core.errors import writing
from fedtailor.export.about import About, describe_inputs
from fedtailor.export.program_file import write_program
from fedtailor.storage.files import write_bytes

CONFIG = "config.json"
TENSORS = "model.safetensors"
GRAPH = "graph.pt2"
CARD = "README.md"
FORMAT = "fedtailor-model-1"


def write_folder(program: ExportedProgram, about: About, path: Path) -> None:
    """Write the folder; it is there completely or not at all."""
    fresh = path.with_name(f".{path.name}.half")
    shutil.rmtree(fresh, ignore_errors=True)
    with writing(path):
        fresh.mkdir(parents=True)
    tensors = _list_tensors(program)
    data = save_safetensors(tensors)
    write_bytes(fresh / TENSORS, data)
    write_program(program, about, fresh / GRAPH)
    digest = hashlib.sha256(data).hexdigest()
    files = {"format": FORMAT, "tensors": TENSORS, "graph": GRAPH, "sha256": digest}
    config = {**files, **about.to_dict()}
    write_bytes(fresh / CONFIG, (json.dumps(config, indent=1) + "\n").encode())
    card = make_card(about, tensors, digest, path.name)
    write_bytes(fresh / CARD, card.encode())
    with writing(path):
        shutil.rmtree(path, ignore_errors=True)
        fresh.rename(path)


def _list_tensors(program: ExportedProgram) -> dict[str, Tensor]:
    """The model's tensors, each with memory of its own."""
    state = program.state_dict
    return {name: state[name].detach().clone().contiguous() for name in sorted(state)}


def make_card(about: About, tensors: dict[str, Tensor], digest: str, name: str) -> str:
    """The card of a model, in the form of model hubs."""
    size = sum(value.numel() for value in tensors.values())
    lines = [
        *_describe_model(about, size),
        *_describe_data(about),
        *_describe_use(name),
        "## Origin",
        "",
        f"- Tensors: `{TENSORS}`, SHA-256 `{digest}`",
        f"- Run: hash `{about.run_hash or 'unknown'}`",
        "",
        "The model fits one client's data: it, its answers and the counts above tell"
        " about them.",
        "",
    ]
    return "\n".join(lines)


def _describe_model(about: About, size: int) -> list[str]:
    settings = ", ".join(f"{k}={v}" for k, v in about.hyper_parameters.items())
    return [
        "---",
        "library_name: fedtailor",
        f"tags: [personalised-federated-learning, {about.method}]",
        "---",
        f"# {about.method}: the model of client {about.client}",
        "",
        f"Trained by personalised federated learning with `{about.method}`"
        f" ({settings or 'no hyper-parameters'}) on the network"
        f" `{about.network}`, {size:,} values; the state of round {about.round}.",
        "",
    ]


def _describe_data(about: About) -> list[str]:
    """Data, inputs, outputs and measures."""
    examples = zip(about.labels, about.examples, strict=True)
    measures = [(name, f"{value:.4g}") for name, value in about.scores.items()]
    lines = [
        "## Data",
        "",
        f"Data set: {about.data}. Training examples of this client by class:",
        "",
        *_make_table("class", "examples", examples),
        "",
        "## Input and output",
        "",
        f"- Input: {describe_inputs(about.inputs)}.",
        f"- Outputs: logits and probabilities, (batch, {len(about.labels)}),"
        " in the order of the classes above.",
    ]
    if about.inputs.columns:
        lines.append(f"- Columns: {', '.join(about.inputs.columns)}.")
    if measures:
        lines += [
            "",
            "## Measures",
            "",
            "On this client's own test data, in the round:",
        ]
        lines += ["", *_make_table("measure", "value", measures)]
    return [*lines, ""]


def _describe_use(name: str) -> list[str]:
    return [
        "## Use",
        "",
        "```python",
        "import fedtailor",
        f'model = fedtailor.load_model("{name}")',
        "model.predict_proba(x)",
        "",
        "import torch  # without fedtailor",
        f'module = torch.export.load("{name}/{GRAPH}").module()',
        "logits, probabilities = module(torch.as_tensor(x))",
        "```",
        "",
    ]


def _make_table(left: str, right: str, rows: Iterable[tuple[str, object]]) -> list[str]:
    lines = [f"| {left} | {right} |", "|---|---:|"]
    return [*lines, *(f"| {name} | {value} |" for name, value in rows)]
