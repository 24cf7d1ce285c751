"""Child processes of `benchmarks.start_up`. Each ends after its first optimizer step and prints the time (`time.time()`) at that moment.

python benchmarks/first_step.py bare BATCH SIDE     imports torch, makes one step of the model, AdamW with its defaults
python benchmarks/first_step.py hydra BATCH SIDE    the same inside a Hydra application that reads the configuration of linnaeus
python benchmarks/first_step.py main ARGUMENTS      main.py with these arguments, unchanged
"""

from __future__ import annotations

import os
import sys
import time
from importlib.machinery import PathFinder
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parents[1]
CLASSES = (5, 15, 40, 120)  # orders, families, genera and species of the embedded data


def stop() -> None:
    """Print the time and end the process at once, without the normal exit of an interpreter that has imported torch (0.3 s)."""
    print(f"first step at {time.time()!r}", flush=True)
    os._exit(0)


def bare(batch: int, side: int) -> None:
    """Make one training step of the network for the embedded data (mformer micro, four taxonomic ranks) on random images, then stop."""
    import torch

    from linnaeus.workloads.taxonomy.config import MformerConfig
    from linnaeus.workloads.taxonomy.heads import LinearHead
    from linnaeus.workloads.taxonomy.models.classifier import Classifier
    from linnaeus.workloads.taxonomy.models.mformer import Mformer
    from linnaeus.workloads.taxonomy.observations.components import COMPONENTS, WIDTHS

    config = MformerConfig(name="mformer", size="micro", dropout=0.0, drop_path=0.0, meta_width=64)
    trunk = Mformer(config, [side], len(CLASSES), COMPONENTS)
    model = Classifier(trunk, LinearHead(trunk.width, SimpleNamespace(sizes=CLASSES)), len(CLASSES), 0.0)
    model.init_weights()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    present = torch.ones(batch, len(COMPONENTS), dtype=torch.bool)
    outputs = model({"image": torch.randn(batch, 3, side, side), "meta": torch.randn(batch, sum(WIDTHS.values())), "present": present})
    target = torch.zeros(batch, dtype=torch.int64)
    loss = sum(torch.nn.functional.cross_entropy(logits, target) for logits in outputs["scores"].logits)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    stop()


def under_hydra(batch: int, side: int) -> None:
    import hydra

    sys.argv = ["main.py"]
    hydra.main(version_base="1.3", config_path=str(ROOT / "conf"), config_name="config")(lambda config: bare(batch, side))()


class StopAfterUpdate:
    """Import hook that ends the process after the first call of `Update`. It changes the class when `linnaeus.optim.update` is imported."""

    def find_spec(self, name: str, path: object, target: object = None) -> object:
        if name != "linnaeus.optim.update":
            return None
        spec = PathFinder.find_spec(name, path)  # type: ignore[arg-type]
        execute = spec.loader.exec_module

        def patched(module: object) -> None:
            execute(module)
            update = module.Update.__call__  # type: ignore[attr-defined]

            def once(self: object) -> None:
                update(self)
                stop()

            module.Update.__call__ = once  # type: ignore[attr-defined]

        spec.loader.exec_module = patched
        return spec


def whole_program(arguments: list[str]) -> None:
    import runpy

    sys.meta_path.insert(0, StopAfterUpdate())  # type: ignore[arg-type]
    sys.argv = ["main.py", *arguments]
    runpy.run_path(str(ROOT / "main.py"), run_name="__main__")


if __name__ == "__main__":
    sys.path[0] = str(ROOT)
    kind, rest = sys.argv[1], sys.argv[2:]
    if kind == "main":
        whole_program(rest)
    else:
        {"bare": bare, "hydra": under_hydra}[kind](*map(int, rest))
