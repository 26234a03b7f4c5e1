"""The lines of a program that uses an exported model on photographs, for the page beside it and for a model card."""

from orchestrator.evaluation.measures import HEADLINES
from orchestrator.search.source import ModelSource

LOADED: dict[str, str] = {
    "onnx": """\
import onnxruntime
import torch

session = onnxruntime.InferenceSession({path!r})


def embed(images):  # uint8 (batch, height, width, channels) -> float32
    return torch.from_numpy(session.run(None, {{"images": images.numpy()}})[0])
""",
    "pt2": """\
import torch

model = torch.export.load({path!r}).module()


def embed(images):  # uint8 (batch, height, width, channels) -> float32
    with torch.no_grad():
        return model(images)
""",
    "torchscript": """\
import torch

model = torch.jit.load({path!r})


def embed(images):  # uint8 (batch, height, width, channels) -> float32
    with torch.no_grad():
        return model(images)
""",
}
"""How a model in a format that is one file is loaded; with `path`."""
PACKAGES = {"onnx": "onnxruntime, torch, torchvision and Pillow"}
"""What the lines need, where it is not the default."""
NEIGHBOURS = """
from pathlib import Path

paths = sorted(Path("photos").rglob("*.jpg"))
rows = torch.cat([embed(prepare(path)) for path in paths])
{nearest}
for path, other in zip(paths, nearest):
    print(path, "looks like", paths[other])
"""
BY_DISTANCE = "nearest = torch.cdist(rows, rows).fill_diagonal_(torch.inf).argmin(1)"
BY_PRODUCT = "nearest = (rows[:, 0] @ rows[:, 1].T).fill_diagonal_(-torch.inf).argmax(1)"
"""For a model whose images have two rows each: the first as a query, the second as an item."""


def photograph_example(source: ModelSource) -> str:
    """How photographs are prepared, embedded and compared, with a function `embed` that is there."""
    nearest = BY_PRODUCT if source.encoder.ranked else BY_DISTANCE
    return source.preparation.example + NEIGHBOURS.format(nearest=nearest)


def example_page(source: ModelSource, form: str, name: str) -> str:
    """The page beside an exported file of this name: what it is, and a program that uses it."""
    about = source.about
    origin = f", trial {about['trial']} of the search {about['search']}" if "search" in about else ""
    told = [f"{split}/{name}" for split in ("test", "val") for name in HEADLINES]
    metrics = about.get("metrics", {})
    scores = ", ".join(f"{name} {metrics[name]:.4f}" for name in told if name in metrics)
    return f"""# {name}

An embedding of images, for retrieval, trained on `{about["dataset"]}` with the method `{about["method"]}`{origin}.

- Input: {about["input"]}.
- Output: {about["output"]}.
{f"- Scores: {scores}." + chr(10) if scores else ""}
The nearest of each photograph in a folder `photos`, with {PACKAGES.get(form, "torch, torchvision and Pillow")}:

```python
{LOADED[form].format(path=name)}

{photograph_example(source)}```
"""
