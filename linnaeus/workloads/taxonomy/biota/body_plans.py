"""Define the body plans of the orders. A body plan maps body coordinates to a `Figure`: distances, pattern coordinates and painted layers.

u runs along the body (head at +1), v across it; both are float32 [B, H, W] in body units (half a body is about 1). `p[i]` is the i-th
proportion of each organism, [B, 1, 1].
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from linnaeus.workloads.taxonomy.biota.shapes import Array, coverage, ellipse, radius, strand

Layer = tuple[Array, str]  # coverage [B, H, W], and the name of a colour of `render._pigments`


@dataclass
class Figure:
    """Geometry of a batch of organisms: signed distances and pattern coordinates of each pixel, and painted layers. Each array is float32
    [B, H, W]."""

    body: Array  # signed distance to the outline of the patterned surface
    along: Array  # pattern coordinate s, -1 to 1
    side: Array  # signed position across, -1 to 1, for the light; its absolute value is the pattern coordinate t
    rim: Array  # pattern coordinate r, 0 in the middle, 1 at the outline
    under: list[Layer] = field(default_factory=list)  # layers painted before the body
    over: list[Layer] = field(default_factory=list)  # layers painted after the body
    gloss: float = 0.0  # strength of the highlight


@dataclass(frozen=True)
class BodyPlan:
    """Drawing function, background, and endings of taxon names for the organisms of an order."""

    name: str
    kingdom: str  # animal or plant; sets the endings of names
    order_ending: str  # of the order's name
    background: str  # key of `background.GROUNDS`
    figure: Callable[[Array, Array, list[Array], Array], Figure]  # (u, v, proportions, pixel)


def _beetle(u: Array, v: Array, p: list[Array], pixel: Array) -> Figure:
    """Return the figure of a beetle. `pixel`: size of a pixel in body units.

    `p`, in body units: half-length and half-width of the elytra, half-length and half-width of the pronotum, radius of the head, reach of
    the legs beyond the elytra, length of the antennae divided by 0.6, length of the mandibles."""
    length, width, pro, prow, head, leg, antenna, mandible = p
    w = np.abs(v)
    centre = -0.22
    r = radius(u, v, centre, 0.0, length, width)
    pu = centre + length * 0.92 + pro * 0.25
    hu = pu + pro * 0.75 + head * 0.35
    thin = np.maximum(0.028, 0.4 * pixel)
    legs = strand(w, u, width * 0.4, width + leg, centre + length * 0.55, 0.30, 0.35, thin)
    legs = np.minimum(legs, strand(w, u, width * 0.4, width + leg * 0.9, centre + length * 0.1, -0.15, -0.2, thin))
    legs = np.minimum(legs, strand(w, u, width * 0.4, width + leg, centre - length * 0.3, -0.45, -0.3, thin))
    feelers = strand(u, w, hu, hu + antenna * 0.6, head * 0.4, 0.8, -0.25 / antenna, thin * 0.9)
    jaws = strand(u, w, hu + head * 0.5, hu + head * 0.7 + mandible, head * 0.75, 0.5, -1.6, thin * 1.7)
    seam = np.maximum(w - 0.6 * thin, u - (centre + length))
    return Figure(
        body=(r - 1.0) * np.minimum(length, width),
        along=(u - centre) / length,
        side=v / width,
        rim=r,
        under=[
            (coverage(np.minimum(np.minimum(legs, feelers), jaws), pixel), "dark"),
            (coverage(ellipse(u, v, hu, 0.0, head, head * 1.1), pixel), "dark"),
        ],
        over=[(coverage(np.maximum(seam, r - 1.0), pixel) * 0.7, "dark"), (coverage(ellipse(u, v, pu, 0.0, pro, prow), pixel), "accent")],
        gloss=0.55,
    )


def _wing(u: Array, w: Array, root: float, angle: Array, length: Array, width: Array) -> tuple[Array, Array, Array]:
    """Return the coordinates of each pixel on a wing that is attached at u = `root`, v = 0, as (radius, along, across), each [B, H, W].
    radius is 1 at the margin; along is -1 at the joint and 1 at the tip; across is 0 on the axis of the wing. `w`: distance of the pixel
    from the axis of the body. `angle`: direction of the wing in radians; 0 is at a right angle to the body, positive angles are towards the
    head."""
    ca, sa = np.cos(angle), np.sin(angle)
    x = (w * ca + (u - root) * sa) / length
    y = ((u - root) * ca - w * sa) / width
    spread = 0.38 + 0.72 * np.clip(x, 0, 1.2)  # narrow at the joint, wide at the margin
    y = y / spread
    return np.sqrt(np.square(2.0 * x - 1.0) + np.square(y)), 2.0 * x - 1.0, y


def _moth(u: Array, v: Array, p: list[Array], pixel: Array) -> Figure:
    """Return the figure of a moth. `p`: forewing length, angle and width, hindwing length, angle and width, length of the tails, half-width
    of the body."""
    fl, fa, fw, hl, ha, hw, tail, bw = p
    w = np.abs(v)
    fr, fs, ft = _wing(u, w, 0.12, fa, fl, fw)
    hr, hs, ht = _wing(u, w, -0.02, ha, hl, hw)
    fore = fr < np.maximum(hr, 1.0)
    r = np.where(fore, fr, hr)
    thin = np.maximum(0.024, 0.4 * pixel)
    tails = strand(-u, w, hl * 0.55, hl * 0.75 + tail, hl * 0.5, 0.15, 0.2, thin * 1.6)
    feelers = strand(u, w, 0.4, 0.4 + fl * 0.42, 0.04, 0.65, 0.3, thin * 0.9)
    crease = np.maximum(np.abs(fr - 1.0) * fw * 0.6 - 0.5 * thin, hr - 1.0)
    scale = np.where(fore, np.minimum(fl, fw), np.minimum(hl, hw)) * 0.5
    return Figure(
        body=(r - 1.0) * scale,
        along=np.where(fore, fs, hs),
        side=np.where(fore, ft, ht),
        rim=r,
        under=[(coverage(tails, pixel), "ground"), (coverage(feelers, pixel), "dark")],
        over=[
            (coverage(crease, pixel) * 0.45, "dark"),
            (coverage(ellipse(u, v, -0.02, 0.0, 0.42, bw), pixel), "dark"),
            (coverage(ellipse(u, v, 0.16, 0.0, 0.16, bw * 1.15), pixel), "accent"),
        ],
    )


def _fish(u: Array, v: Array, p: list[Array], pixel: Array) -> Figure:
    """Return the figure of a fish. `p`: half-length, half-depth, fullness at the head, length of the tail fin, depth of its fork (0 to 1),
    height of the dorsal fin, height of the anal fin, position of the dorsal fin along the body."""
    length, depth, front, tail, fork, dorsal, anal, place = p
    s = (u - 0.12) / length
    w = np.abs(v)
    inside = np.clip(1.0 - s * s, 1e-4, None)
    profile = depth * np.sqrt(inside) * (0.82 + 0.18 * inside + front * s)
    body = np.maximum((w - profile) * 0.85, (np.abs(s) - 1.0) * length)
    back = -(u - 0.12) - length * 0.86
    flare = 0.04 + (0.35 + 0.4 * tail) * np.clip(back, 0, None) / tail
    tail_fin = np.maximum((w - flare * 0.75) * 0.8, np.maximum(-back, back - tail * (1.0 - fork * (1.0 - np.clip(w / 0.4, 0, 1)))))
    high = np.where(v > 0, dorsal, anal)
    hump = np.square((s - np.where(v > 0, place, -0.45)) / np.where(v > 0, 0.55, 0.3))
    fins = np.maximum(w - profile - high * np.sqrt(np.clip(1.0 - hump, 0, None)), (hump - 1.0) * 0.3)
    rays = 0.72 + 0.28 * np.cos(42.0 * (u + 0.6 * w))
    eye_u, eye_v, eye = 0.12 + length * 0.70, depth * 0.22, np.minimum(0.085, depth * 0.22) + 0.01
    ball = ellipse(u, v, eye_u, eye_v, eye, eye)
    gill = np.maximum(
        np.abs(radius(u, v, 0.12 + length * 0.78, 0.0, length * 0.36, depth * 0.95) - 1.0) * depth - 0.018,
        np.maximum(u - (0.12 + length * 0.6), body),
    )
    flipper = ellipse(u + 0.5 * v, v, 0.12 + length * 0.2, -depth * 0.3, length * 0.2, depth * 0.22)
    return Figure(
        body=body,
        along=s,
        side=v / np.maximum(profile, 0.02),
        rim=np.maximum(np.abs(s), w / np.maximum(profile, 0.02)),
        under=[(coverage(np.minimum(tail_fin, fins), pixel) * rays, "fin")],
        over=[
            (coverage(flipper, pixel) * 0.8, "fin"),
            (coverage(gill, pixel) * 0.5, "dark"),
            (coverage(ball, pixel), "pale"),
            (coverage(ball + eye * 0.42, pixel), "black"),
        ],
        gloss=0.3,
    )


def _flower(u: Array, v: Array, p: list[Array], pixel: Array) -> Figure:
    """Return the figure of a flower. `p`: number of petals (rounded), petal length, depth of the gaps between petals, exponent of the petal
    outline, depth of the notch in each petal, radius of the centre, length of the sepals divided by the petal length, bend of the stem."""
    count, length, gap, roundness, notch, heart, sepal, bend = p
    rho = np.sqrt(u * u + v * v)
    half = 0.5 * np.round(count) * np.arctan2(v, u)
    lobe = np.abs(np.cos(half))
    between = np.abs(np.sin(half))
    outline = length * (1.0 - gap + gap * lobe**roundness - notch * np.clip(1.0 - between / 0.35, 0, None))
    sepals = rho - length * sepal * (0.25 + 0.75 * between**2.5)
    s = 2.0 * rho / outline - 1.0
    stem = strand(-u, v, 0.0, 2.6, 0.0, 0.0, bend, np.maximum(0.035, 0.5 * pixel))
    cleft = np.clip((0.28 - lobe) / 0.28, 0, 1) * np.clip((rho - heart) / 0.2, 0, 1)
    disk = rho - heart
    grain = 0.62 + 0.38 * np.cos(55.0 * u) * np.cos(55.0 * v)
    return Figure(
        body=(rho - outline) * 0.8,
        along=s,
        side=between,
        rim=rho / outline,
        under=[(coverage(stem, pixel), "green"), (coverage(sepals * 0.7, pixel), "green")],
        over=[
            (cleft * coverage((rho - outline) * 0.8, pixel) * 0.55, "dark"),
            (coverage(disk, pixel), "accent"),
            (coverage(disk, pixel) * (1.0 - grain), "dark"),
        ],
    )


def _leaf(u: Array, v: Array, p: list[Array], pixel: Array) -> Figure:
    """Return the figure of a leaf. `p`: half-length, half-width, extra width at the base, number of lobes (rounded), depth and slant of the
    lobes, depth of the teeth, length of the petiole."""
    length, width, base, lobes, lobe_depth, slant, teeth, petiole = p
    s = u / length
    w = np.abs(v)
    inside = np.clip(1.0 - s * s, 1e-4, None)
    smooth = width * inside**0.75 * np.clip(1.0 - base * s, 0.1, None)
    wave = np.pi * np.round(lobes) * (s - slant * w / width) + 0.6
    cut = lobe_depth * (0.5 - 0.5 * np.cos(wave)) + teeth * (0.5 - 0.5 * np.cos(34.0 * (s - 0.3 * w)))
    outline = np.maximum(smooth * (1.0 - cut), 0.03)
    body = np.maximum((w - outline) * 0.7, (np.abs(s) - 1.0) * length)
    stalk = strand(-u, v, length * 0.9, length + petiole, 0.0, 0.0, 0.25, np.maximum(0.028, 0.5 * pixel))
    thin = np.maximum(0.012, 0.35 * pixel)
    midrib = np.maximum(w - thin * (1.35 - s * 0.5), body)
    nerves = np.clip((np.cos(14.0 * (s - 0.75 * w / width)) - 0.90) / 0.10, 0, 1) * coverage(body, pixel)
    return Figure(
        body=body,
        along=s,
        side=v / np.maximum(smooth, 0.03),
        rim=np.maximum(np.abs(s), w / outline),
        under=[(coverage(stalk, pixel), "stalk")],
        over=[(nerves * 0.35, "pale"), (coverage(midrib, pixel) * 0.85, "accent")],
    )


BODY_PLANS = (
    BodyPlan("beetle", "animal", "optera", "bark", _beetle),
    BodyPlan("moth", "animal", "optera", "foliage", _moth),
    BodyPlan("fish", "animal", "iformes", "water", _fish),
    BodyPlan("flower", "plant", "ales", "foliage", _flower),
    BodyPlan("leaf", "plant", "ales", "litter", _leaf),
)
FAMILIES = {  # body plan -> the eight proportions of each family
    "beetle": (
        (0.58, 0.52, 0.20, 0.34, 0.17, 0.18, 0.25, 0.02),
        (0.66, 0.25, 0.17, 0.20, 0.13, 0.42, 1.15, 0.02),
        (0.52, 0.36, 0.26, 0.36, 0.19, 0.34, 0.28, 0.34),
    ),
    "moth": (
        (0.92, 0.42, 0.52, 0.74, -0.75, 0.56, 0.0, 0.08),
        (1.08, 0.10, 0.30, 0.62, -0.62, 0.32, 0.0, 0.15),
        (0.95, 0.55, 0.40, 0.80, -0.95, 0.40, 0.42, 0.07),
    ),
    "fish": (
        (0.70, 0.30, 0.12, 0.34, 0.65, 0.20, 0.14, 0.10),
        (0.60, 0.58, 0.02, 0.26, 0.10, 0.26, 0.24, -0.10),
        (0.88, 0.15, 0.06, 0.18, 0.0, 0.14, 0.10, -0.25),
    ),
    "flower": (
        (5.0, 0.82, 0.55, 0.45, 0.10, 0.17, 0.95, 0.25),
        (4.0, 0.84, 0.80, 1.30, 0.0, 0.13, 0.75, -0.2),
        (11.0, 0.86, 0.45, 0.7, 0.0, 0.30, 0.6, 0.15),
    ),
    "leaf": (
        (0.92, 0.36, 0.25, 1.0, 0.0, 0.0, 0.14, 0.35),
        (0.88, 0.60, -0.10, 5.0, 0.50, 0.5, 0.0, 0.25),
        (0.90, 0.66, 0.20, 9.0, 0.88, 1.0, 0.0, 0.30),
    ),
}
VARIABILITY = {  # body plan -> variation of each proportion between genera, in units of 12 %
    "beetle": (0.6, 1, 1, 1, 0.5, 1, 1, 1),
    "moth": (0.5, 1.5, 1, 0.7, 0.7, 1, 1, 1),
    "fish": (0.4, 0.9, 1, 1, 1, 1.3, 1.3, 1),
    "flower": (0.5, 0.3, 0.8, 1, 1, 1, 1, 1),
    "leaf": (0.3, 1.3, 1, 0.3, 0.5, 0.6, 1, 1),
}
