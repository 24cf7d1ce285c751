"""Write the README.md of an exported model: inputs, outputs, example code, and how place, time and elevation become columns of `meta`."""

from __future__ import annotations

from collections.abc import Mapping

from linnaeus.errors import counted
from linnaeus.workloads.taxonomy.observations.components import ELEVATION_PERIODS, column_slices
from linnaeus.workloads.taxonomy.trained.classifier.trained_classifier import TrainedClassifier
from linnaeus.workloads.taxonomy.trained.export.exported_network import input_names, output_names

_WAVES = [f"{wave}(2 * pi * elevation / {period:g})" for period in ELEVATION_PERIODS for wave in ("sin", "cos")]
FORMULAS = {  # component -> the formula of each of its columns, in functions of numpy
    "SPATIAL": [
        "cos(radians(latitude)) * cos(radians(longitude))",
        "cos(radians(latitude)) * sin(radians(longitude))",
        "sin(radians(latitude))",
        "log10(maximum(uncertainty, 1)) / 6",
        "isfinite(uncertainty)",
    ],
    "TEMPORAL": [
        "sin(2 * pi * day)",
        "cos(2 * pi * day)",
        "sin(4 * pi * day)",
        "cos(4 * pi * day)",
        "sin(2 * pi * hour / 24)",
        "cos(2 * pi * hour / 24)",
        "isfinite(hour)",
    ],
    "ELEVATION": ["elevation / 1000", "sign(elevation) * log1p(abs(elevation) / 10) / 5", *_WAVES],
}
OPTIONAL = {"uncertainty": "SPATIAL", "hour": "TEMPORAL"}  # may be unknown in a component that is present; their columns are then 0
UNITS = {
    "SPATIAL": "`latitude` and `longitude` in degrees north and east, `uncertainty` of the coordinates in metres",
    "TEMPORAL": "`day`: (day of the year - 1) / days of the year, `hour`: local time in hours",
    "ELEVATION": "`elevation` in metres above the sea",
}
ONNX_CODE = """\
import json
import numpy as np
import onnxruntime
from PIL import Image, ImageOps

session = onnxruntime.InferenceSession("FOLDER/model.onnx")
image, *metadata = session.get_inputs()
picture = ImageOps.exif_transpose(Image.open("photo.jpg")).convert("RGB")
crop = {crop}  # side of the central square, as a share of the short side
side = max(round(crop * min(picture.size)), 1)
left, top = ((length - side + 1) // 2 for length in picture.size)
picture = picture.crop((left, top, left + side, top + side)).resize((image.shape[3], image.shape[2]), Image.Resampling.BILINEAR)
inputs = {"image": np.asarray(picture).transpose(2, 0, 1)[None]}
for one in metadata:  # nothing is known
    inputs[one.name] = np.zeros((1, one.shape[1]), bool if one.name == "present" else np.float32)
*probabilities, path = session.run(None, inputs)
best = probabilities[-1][0].argmax()
print(json.load(open("FOLDER/taxonomy.json"))["names"][-1][best], probabilities[-1][0, best])"""
TORCH_CODE = """\
import torch

model = torch.export.load("FOLDER/model.pt2").module()
outputs = model({inputs})  # a dictionary of tensors; as image: torch.uint8 [B, 3, {side}, {side}]"""
TIMM_CODE = """\
import timm

backbone = timm.create_model("local-dir:FOLDER/timm", pretrained=True, num_classes=0).eval()
transform = timm.data.create_transform(**timm.data.resolve_model_data_config(backbone))"""


def readme(classifier: TrainedClassifier, files: Mapping[str, str], differences: Mapping[str, float], origin: str) -> str:
    """Return the text of README.md. `files`: form -> file. `differences`: form -> largest difference from the model.

    `origin`: where the images of the check are from."""
    measured = {form: "feature, relative to the largest" if form == "timm" else "probability" for form in files}
    rows = "".join(f"| `{files[form]}` | {form} | {differences[form]:.1e} of a {measured[form]} |\n" for form in files)
    side, graphs = classifier.image_size, [form for form in files if form != "timm"]
    crop = classifier.description.center_crop
    part = "" if crop == 1 else f", whose side is {crop:g} of the short side"
    masked = ", with each combination of metadata" if classifier.components else ""
    blocks = [
        f"# A classifier of {counted(classifier.tree.sizes[-1], 'taxon')} of rank {classifier.tree.ranks[-1]}, for other programs",
        f"| file | form | largest difference from the model |\n|---|---|---|\n{rows}\nDifferences were measured on {origin}, in batches of "
        f"1, 7 and 64{masked}. SHA-256 of the weights: {classifier.weights.digest}.",
        "`taxonomy.json` has the names of the classes: `names[r]` is the list of rank `ranks[r]`, coarse to fine.",
        f"## Image\n\nThe central square of a photograph in upright position{part}, resized to {side} x {side} pixels by an "
        "antialiased bilinear filter.",
        *(_graphs(classifier) if graphs else []),
    ]
    codes = {"onnx": ONNX_CODE, "torch_export": TORCH_CODE, "timm": TIMM_CODE}
    named = {"{inputs}": ", ".join(input_names(classifier.components)), "{side}": str(side), "{crop}": f"{crop:g}"}
    for form in files:
        code = codes[form]
        for name, value in named.items():
            code = code.replace(name, value)
        blocks.append(f"## Form {form}\n\n```python\n{code}\n```")
    return "\n\n".join(blocks) + "\n"


def _graphs(classifier: TrainedClassifier) -> list[str]:
    """Return the sections on inputs and outputs of model.onnx and model.pt2, in Markdown."""
    side, ranks, components = classifier.image_size, classifier.tree.ranks, classifier.components
    *probabilities, path = output_names(ranks)
    rows = [("`image`", f"uint8 [B, 3, {side}, {side}]", "RGB from 0 to 255; it is normalised inside")]
    if components:
        columns = column_slices(components)[-1].stop
        rows.append(("`meta`", f"float32 [B, {columns}]", "place, time and elevation; columns of an absent component are ignored"))
        rows.append(("`present`", f"bool [B, {len(components)}]", f"which components are known: {', '.join(components)}"))
    found = [
        (f"`{name}`", f"float32 [B, {size}]", f"probabilities of rank {rank}, which sum to 1")
        for name, rank, size in zip(probabilities, ranks, classifier.tree.sizes, strict=True)
    ]
    found.append((f"`{path}`", f"int64 [B, {len(ranks)}]", "the predicted class of each rank; -1 where the path has no taxon"))
    head = "| name | type | content |\n|---|---|---|\n"
    tables = ["\n".join(f"| {' | '.join(row)} |" for row in table) for table in (rows, found)]
    sections = [f"## Inputs\n\n{head}{tables[0]}\n\nB is any number of photographs.", f"## Outputs\n\n{head}{tables[1]}"]
    return sections + ([_encoding(components)] if components else [])


def _encoding(components: tuple[str, ...]) -> str:
    """Return the section on the columns of `meta`, in Markdown."""
    lines = [f"- {name}: {UNITS[name]}." for name in components]
    optional = [f"`{quantity}`" for quantity, name in OPTIONAL.items() if name in components]
    if optional:
        lines.append(f"- {' and '.join(optional)} may be unknown in a known component: all columns of it are then 0.")
    formulas = [(name, formula) for name in components for formula in FORMULAS[name]]
    rows = "\n".join(f"| {column} | {name} | `{formula}` |" for column, (name, formula) in enumerate(formulas))
    text = "\n".join(lines)
    return f"## Columns of `meta`\n\n{text}\n\n| column | component | value, by the functions of numpy |\n|---:|---|---|\n{rows}"
