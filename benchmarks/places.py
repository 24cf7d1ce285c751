"""Show how well the metadata encoder tells places apart, in regions from 10 km to a continent.

    python -m benchmarks.places                       51 species, 2,674 observations
    python -m benchmarks.places --species 16 --observations 290 --epochs 60 --seeds 3

Every species has ranges at random places in a square region, which are normal distributions. `wide`: one to three ranges, whose standard
deviation is 5 to 30 % of the side. `narrow`: two to six of 1 to 6 %. `parks`: three parks of 1 % of the side contain all ranges, one to
three of each species, of 5 to 30 % of a park. The metadata encoder, the late fusion with features that are 0, and a classifier learn to
name the species from the place alone. They read the place on the unit sphere only (`sphere`), or also its quantiles among the training
observations (`quantiles`, as in every run). `best` is the accuracy of the true posterior on the same 4,000 test observations, `most
frequent` that of naming one species always. Loss is the cross-entropy on the test observations."""

from __future__ import annotations

import argparse
import itertools
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linnaeus.workloads.taxonomy.models.classifier import LateFusion, MetadataEncoder, init_affine
from linnaeus.workloads.taxonomy.models.place_quantiles import COLUMNS
from linnaeus.workloads.taxonomy.observations import Metadata
from linnaeus.workloads.taxonomy.observations.components import encode

WORLDS = {"wide": ((1, 3), (0.05, 0.3)), "narrow": ((2, 6), (0.01, 0.06)), "parks": ((1, 3), (0.0005, 0.003))}  # ranges, widths
PARKS, PARK = 3, 0.01  # number of parks, their side as a share of that of the region
SIDES = (10.0, 100.0, 1000.0, 8000.0)  # km
LATITUDE, LONGITUDE, KM = 37.0, -122.0, 111.2  # centre of the region, kilometres of a degree
TESTED, BATCH, RATE, WIDTH, META_WIDTH = 4000, 64, 3e-3, 512, 256  # the width of resnet10t and the settings of experiment=photos


@dataclass(frozen=True)
class Observations:
    """Observations in a region: features and presence of SPATIAL, species int64 [N], and the posterior of the true model, [N, S]."""

    meta: Tensor
    present: Tensor
    species: Tensor
    posterior: np.ndarray


class World:
    """Species with ranges in the unit square, and Zipf frequencies. `kind`: a key of `WORLDS`."""

    def __init__(self, species: int, seed: int, kind: str = "wide") -> None:
        self.draw = np.random.default_rng(seed)
        (fewest, most), widths = WORLDS[kind]
        frequency = 1 / np.arange(1, species + 1) ** 0.7
        self.frequency = frequency / frequency.sum()
        self.centres = [self.draw.uniform(-0.5, 0.5, (self.draw.integers(fewest, most + 1), 2)) for _ in range(species)]
        self.widths = self.draw.uniform(*widths, species)
        if kind == "parks":
            parks = self.draw.uniform(-0.5, 0.5, (PARKS, 2))
            self.centres = [parks[self.draw.integers(0, PARKS, len(own))] + PARK * own for own in self.centres]

    def draw_places(self, species: np.ndarray) -> np.ndarray:
        """Return places of N individuals in the unit square, float [N, 2]. `species`: int [N]."""
        return np.stack([self.draw.choice(self.centres[s]) + self.draw.normal(0, self.widths[s], 2) for s in species])

    def observe(self, count: int, side: float) -> Observations:
        """Draw `count` observations in a region of `side` km."""
        species = self.draw.choice(len(self.widths), count, p=self.frequency)
        places = self.draw_places(species)
        latitude, longitude = coordinates(places, side)
        unknown = {name: np.full(count, np.nan) for name in ("uncertainty", "day", "hour", "elevation")}
        meta, present = encode(Metadata(latitude=latitude, longitude=longitude, **unknown), ["SPATIAL"])
        return Observations(torch.from_numpy(meta), torch.from_numpy(present), torch.from_numpy(species), self._posterior(places))

    def _posterior(self, places: np.ndarray) -> np.ndarray:
        columns = []
        for centres, width, frequency in zip(self.centres, self.widths, self.frequency, strict=True):
            squares = np.square(places[:, None] - centres).sum(2)
            columns.append(frequency * np.exp(-squares / (2 * width**2)).mean(1) / width**2)
        return np.stack(columns, axis=1)


def coordinates(places: np.ndarray, side: float) -> tuple[np.ndarray, np.ndarray]:
    """Return latitude and longitude in degrees of places in the unit square, float [N, 2], whose side is `side` km."""
    return LATITUDE + places[:, 1] * side / KM, LONGITUDE + places[:, 0] * side / KM / np.cos(np.deg2rad(LATITUDE))


class PlaceClassifier(nn.Module):
    """Classifier of species that reads the place alone, with the metadata encoder and the late fusion of `model=timm`."""

    def __init__(self, species: int, quantiles: bool, training: Observations) -> None:
        super().__init__()
        self.encoder, self.fusion = MetadataEncoder(["SPATIAL"], META_WIDTH, META_WIDTH), LateFusion(WIDTH, META_WIDTH)
        self.classifier = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, species))
        self.apply(init_affine)
        self.encoder.init_weights()
        assert self.encoder.quantiles is not None
        if quantiles:
            self.encoder.quantiles.fit(training.meta[:, :COLUMNS].numpy())
        else:
            self.encoder.quantiles.register_forward_hook(lambda module, inputs, result: torch.zeros_like(result))

    def forward(self, meta: Tensor, present: Tensor) -> Tensor:
        features = self.fusion(meta.new_zeros(len(meta), 1, WIDTH), self.encoder(meta, present).flatten(1))
        scores: Tensor = self.classifier(features[:, 0])
        return scores


def accuracy(quantiles: bool, o: argparse.Namespace, kind: str, side: float, seed: int) -> tuple[float, float, float, float]:
    """Train a classifier. Return its accuracy and loss on test observations, the best accuracy, and that of the most frequent species."""
    species, observations, epochs = o.species, o.observations, o.epochs
    world = World(species, seed, kind)
    training, test = world.observe(observations, side), world.observe(TESTED, side)
    torch.manual_seed(seed)
    model, updates = PlaceClassifier(species, quantiles, training), epochs * (observations // BATCH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, updates)
    for _ in range(epochs):
        for rows in torch.randperm(observations).split(BATCH)[: observations // BATCH]:
            loss = F.cross_entropy(model(training.meta[rows], training.present[rows]), training.species[rows], label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    with torch.no_grad():
        scores = model(test.meta, test.present)
    answers = scores.argmax(1), torch.from_numpy(test.posterior).argmax(1), training.species.bincount().argmax()
    own, best, frequent = (float((answer == test.species).double().mean()) for answer in answers)
    return own, float(F.cross_entropy(scores, test.species)), best, frequent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--species", type=int, default=51)
    parser.add_argument("--observations", type=int, default=2674, help="number of training observations (2674)")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--seeds", type=int, default=1, help="number of worlds (1)")
    parser.add_argument("--sides", type=float, nargs="+", default=SIDES, metavar="KM", help="sides of the region in kilometres")
    parser.add_argument("--worlds", nargs="+", default=list(WORLDS), choices=WORLDS, help="kinds of ranges (all)")
    given = parser.parse_args()
    print("| ranges | side, km | sphere | quantiles | best | most frequent | loss, sphere | loss, quantiles |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for kind, side in itertools.product(given.worlds, given.sides):
        sphere, own = (
            np.mean([accuracy(quantiles, given, kind, side, seed) for seed in range(given.seeds)], axis=0) for quantiles in (False, True)
        )
        shares = " | ".join(f"{100 * value:.1f}" for value in (sphere[0], own[0], own[2], own[3]))
        print(f"| {kind} | {side:,.0f} | {shares} | {sphere[1]:.2f} | {own[1]:.2f} |", flush=True)


if __name__ == "__main__":
    main()
