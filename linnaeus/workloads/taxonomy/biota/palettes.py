"""Natural pigments, as RGB in [0, 1]: what may be a ground colour, a mark or an accent on each body plan.

Colours within a palette lie far enough apart that neither the light of a photograph nor mild colour jitter makes one another.
"""

from __future__ import annotations

Colour = tuple[float, float, float]

BLACK, CHARCOAL, CHESTNUT, RUST, CRIMSON = (
    (0.09, 0.08, 0.09),
    (0.24, 0.24, 0.28),
    (0.42, 0.20, 0.09),
    (0.72, 0.30, 0.08),
    (0.70, 0.08, 0.12),
)
ORANGE, OCHRE, YELLOW, CREAM, WHITE = (0.93, 0.50, 0.08), (0.76, 0.58, 0.24), (0.95, 0.82, 0.18), (0.93, 0.87, 0.70), (0.95, 0.95, 0.93)
OLIVE, GREEN, EMERALD, TURQUOISE, STEEL = (0.40, 0.42, 0.12), (0.22, 0.50, 0.14), (0.05, 0.42, 0.25), (0.18, 0.66, 0.68), (0.22, 0.36, 0.58)
BLUE, VIOLET, MAUVE, PINK, SILVER = (0.16, 0.25, 0.72), (0.42, 0.16, 0.55), (0.68, 0.50, 0.78), (0.93, 0.55, 0.66), (0.70, 0.73, 0.76)
LIME, BRONZE, WINE, SEA_GREEN = (0.62, 0.74, 0.20), (0.48, 0.34, 0.20), (0.45, 0.10, 0.22), (0.42, 0.62, 0.50)

PALETTES: dict[str, tuple[Colour, ...]] = {
    "beetle": (CHARCOAL, CHESTNUT, CRIMSON, ORANGE, OCHRE, EMERALD, STEEL, VIOLET, CREAM, OLIVE),
    "moth": (CHARCOAL, CHESTNUT, RUST, OCHRE, CREAM, YELLOW, SILVER, TURQUOISE, MAUVE, CRIMSON),
    "fish": (SILVER, STEEL, BLUE, TURQUOISE, YELLOW, ORANGE, OLIVE, CRIMSON, CHARCOAL, CREAM),
    "flower": (WHITE, YELLOW, ORANGE, PINK, CRIMSON, VIOLET, BLUE, MAUVE),
    "leaf": (GREEN, LIME, EMERALD, WINE, RUST, SEA_GREEN, YELLOW, BRONZE),
}
MARKS: dict[str, tuple[Colour, ...]] = {
    "beetle": (BLACK, YELLOW, CREAM, CRIMSON, ORANGE),
    "moth": (BLACK, WHITE, ORANGE, CHESTNUT, BLUE),
    "fish": (BLACK, WHITE, YELLOW, BLUE, ORANGE),
    "flower": (WINE, WHITE, YELLOW, VIOLET, CRIMSON),
    "leaf": (CREAM, WINE, LIME, YELLOW, BLACK),
}
ACCENTS: tuple[Colour, ...] = (WHITE, BLACK, ORANGE, TURQUOISE)
