"""`LoadoutModel`: a trained model with its tokens and weapons, for use."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from linnaeus.errors import ConfigError
from linnaeus.workloads.loadout.completion.build_decoding import METHODS, Answer, complete
from linnaeus.workloads.loadout.completion.gear_requests import Request, make_request
from linnaeus.workloads.loadout.game.token_code import TokenCode
from linnaeus.workloads.loadout.game.weapons import Weapons
from linnaeus.workloads.loadout.model.set_transformer import SetTransformer

BATCH = 512  # requests at once, fewer if more than `FEW_ANSWERS` builds are wanted for each
FEW_ANSWERS = 8


class LoadoutModel:
    """Trained network in evaluation mode, with its tokens and weapons; completes builds.

    source: the file of the weights. notes: lines for the user. unseen: indices of the weapons without training builds."""

    def __init__(
        self,
        network: SetTransformer,
        code: TokenCode,
        weapons: Weapons,
        source: str,
        notes: Sequence[str] = (),
        unseen: frozenset[int] = frozenset(),
    ) -> None:
        self.network, self.code, self.weapons, self.source, self.notes = network.eval(), code, weapons, source, list(notes)
        self.unseen = unseen

    def notes_of(self, weapons: Iterable[int]) -> list[str]:
        """Return `notes`, and a line for each of `weapons` without training builds. weapons: indices of the weapons of requests."""
        names = [self.weapons.name(number) for number in sorted(self.unseen.intersection(weapons))]
        return [*self.notes, *(f"no training build has the weapon {name}; the answers are not adapted to it" for name in names)]

    @torch.inference_mode()
    def tails(self, builds: np.ndarray, weapon: np.ndarray) -> Tensor:
        """Return the probability that a build has at least j = 1 to 9 more of each item than `builds`: [N, 40, 9], from one model call.

        builds: int8 [N, 40], given gear. weapon: int64 [N], indices of weapons."""
        device = self.network.output.weight.device
        batch = {"tokens": self.code.token_sets(builds), "weapon": np.asarray(weapon, np.int64)}
        logits = self.network({name: torch.from_numpy(values).to(device) for name, values in batch.items()})
        return self.code.tails(logits.double().sigmoid(), torch.from_numpy(builds).to(device))

    def complete(
        self, weapon: str, have: str = "", *, points: dict[str, int] | None = None, top: int = 1, method: str = "direct"
    ) -> list[Answer]:
        """Return the best builds for a weapon that contain the gear `have` and have at least the ability points `points`: at most `top`.

        have: text such as `swim_speed_up: main sub`. points: ability -> ability points. method: "direct", "beam", or "closure" (one
        answer). Raise `ConfigError` for a request that no legal build meets, and for `top` below 1."""
        if method not in METHODS:
            raise ConfigError(f"method is {method!r}; use one of {', '.join(METHODS)}")
        if top < 1:
            raise ConfigError(f"top is {top}; it must be at least 1")
        request = make_request(self.weapons, weapon, have, points)
        if request.given is None:
            raise ConfigError(request.reason)
        return self.answers([request], method, top)[0]

    def answers(self, requests: Sequence[Request], method: str, top: int) -> list[list[Answer]]:
        """Return a list of answers to each request, best first, at most `top`; [] for a request that cannot be met."""
        found: list[list[Answer]] = [[] for _ in requests]
        able = [i for i, request in enumerate(requests) if request.given is not None]
        size = max(1, BATCH * FEW_ANSWERS // max(top, FEW_ANSWERS))
        for start in range(0, len(able), size):
            part = able[start : start + size]
            given = np.stack([requests[i].given for i in part])  # type: ignore[misc]
            weapon = np.array([requests[i].weapon for i in part])
            for i, rows in zip(part, complete(self.tails, given, weapon, method, top), strict=True):
                found[i] = rows
        return found
