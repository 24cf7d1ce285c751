"""Show partial builds on an HTML page about single samples: the weapon, and the tokens or slots of the gear."""

from __future__ import annotations

from collections.abc import Callable
from html import escape

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from linnaeus.data.samples import Batch
from linnaeus.workloads.loadout.game.gear import EMPTY, arrange
from linnaeus.workloads.loadout.game.token_code import NULL, PAD, TokenCode
from linnaeus.workloads.loadout.game.weapons import Weapons
from linnaeus.workloads.sample_view import SampleView


class BuildView(SampleView):
    """Log-probabilities and HTML of partial builds, for pages about single samples. The model outputs are the tokens of the whole build."""

    def __init__(self, code: TokenCode, weapons: Weapons, name: Callable[[int], str]) -> None:
        super().__init__(name)
        self.code, self.weapons, self.outputs = code, weapons, {"token of the build": code.names}

    def scores(self, model: nn.Module, batch: Batch, position: Tensor | None) -> dict[str, Tensor]:
        return {"token of the build": F.logsigmoid(model(batch).double())}

    def html(self, batch: Batch, row: int, heat: np.ndarray | None) -> str:
        """Return the partial build in row `row` of `batch` as HTML: the weapon and a table of the given slots of each piece.

        heat: [T], a number for each of the T tokens in the order in which the network reads them; the tokens are shown instead of the
        table, each marked by its number. None: no marks. In a batch without `observed` (training) the tokens are shown without marks."""
        weapon = f"<b>{escape(self.weapons.name(int(batch['weapon'][row])))}</b>"
        tokens = sorted(batch["tokens"][row].tolist())  # as the network sorts them
        if heat is not None and heat.shape == (len(tokens),):
            shown = [(self.code.names[token], strength) for token, strength in zip(tokens, heat, strict=True) if token != PAD]
            marks = [f'<mark style="--heat:{strength:.2f}">{escape(name)}</mark>' for name, strength in shown]
            return f'<p class="gear">{weapon} {" ".join(marks)}</p>'
        if "observed" not in batch:
            names = " ".join(escape(self.code.names[token]) for token in tokens if token not in (PAD, NULL))
            return f'<p class="gear">{weapon} {names}</p>'
        pieces = arrange(batch["observed"][row].numpy()).items()
        rows = "".join(f"<tr><th>{piece}</th>{_slot(main)}{''.join(map(_slot, subs))}</tr>" for piece, (main, subs) in pieces)
        return f'<div class="gear">{weapon}<table>{rows}</table></div>'


def _slot(ability: str) -> str:
    return '<td class="free">·</td>' if ability == EMPTY else f"<td>{escape(ability.replace('_', ' '))}</td>"
