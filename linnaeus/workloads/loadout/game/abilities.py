"""Abilities, slots and ability points of Splatoon 3 gear.

A build has three pieces of gear: head, clothes and shoes. Each piece has one main slot (10 points) and three sub slots (3 points each), so
a build has 57 points. A main-only ability fits the main slot of one piece and occurs at most once. A standard ability fits every slot, any
number of times.

An item is an ability in one kind of slot. There are 40 items (`ITEMS`): 12 main-only abilities, 14 standard abilities in main slots, and
the 14 standard abilities in sub slots. The program represents a build as the count of each item, int8 [40]. The piece of a standard ability
is not represented, because it does not change the effect of the build.
"""

import numpy as np

PIECES = ("head", "clothes", "shoes")
MAIN_ONLY = {
    "head": ("comeback", "last_ditch_effort", "opening_gambit", "tenacity"),
    "clothes": ("ability_doubler", "haunt", "ninja_squid", "respawn_punisher", "thermal_ink"),
    "shoes": ("drop_roller", "object_shredder", "stealth_jump"),
}
STANDARD = (
    *("ink_recovery_up", "ink_resistance_up", "ink_saver_main", "ink_saver_sub", "intensify_action", "quick_respawn"),
    *("quick_super_jump", "run_speed_up", "special_charge_up", "special_power_up", "special_saver", "sub_power_up"),
    *("sub_resistance_up", "swim_speed_up"),
)
PIECE_OF = {name: piece for piece, names in MAIN_ONLY.items() for name in names}
ABILITIES = (*PIECE_OF, *STANDARD)  # 26
MAIN_SLOTS, SUB_SLOTS, SUBS_PER_PIECE = 3, 9, 3
SLOTS = MAIN_SLOTS + SUB_SLOTS
MAIN_POINTS, SUB_POINTS = 10, 3
FULL_POINTS = MAIN_SLOTS * MAIN_POINTS + SUB_SLOTS * SUB_POINTS  # 57

_ONLY, _STANDARD = len(PIECE_OF), len(STANDARD)
MAIN_ITEMS = _ONLY + _STANDARD  # items 0 to 25 are in main slots, in the order of ABILITIES; the others in sub slots
ITEMS = (*ABILITIES, *STANDARD)  # ability of each item, 40
ITEM_ABILITY = np.array([*range(MAIN_ITEMS), *range(_ONLY, MAIN_ITEMS)])  # [40] index into ABILITIES
ITEM_POINTS = np.array([MAIN_POINTS] * MAIN_ITEMS + [SUB_POINTS] * _STANDARD)  # [40]
ITEM_PIECE = np.array([PIECES.index(PIECE_OF[name]) if name in PIECE_OF else -1 for name in ABILITIES])  # [26] -1: any piece
MOST = np.array([1] * _ONLY + [MAIN_SLOTS] * _STANDARD + [SUB_SLOTS] * _STANDARD)  # [40] highest count of an item in a legal build


def main_item(ability: str) -> int:
    """Return the index in `ITEMS` of an ability in a main slot."""
    return ABILITIES.index(ability)


def sub_item(ability: str) -> int:
    """Return the index in `ITEMS` of a standard ability in a sub slot."""
    return MAIN_ITEMS + STANDARD.index(ability)


def ability_points(builds: np.ndarray) -> np.ndarray:
    """Return the ability points of each of the 26 abilities, int64 [..., 26]. builds: int [..., 40], counts of `ITEMS`."""
    points = builds * ITEM_POINTS
    found = points[..., :MAIN_ITEMS].astype(np.int64)
    found[..., _ONLY:] += points[..., MAIN_ITEMS:]
    return found


def free_slots(builds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (number of free main slots, number of free sub slots), int64 [...] each; negative if a build has too many abilities. builds:
    int [..., 40], counts of `ITEMS`."""
    mains, subs = builds[..., :MAIN_ITEMS].sum(-1, dtype=np.int64), builds[..., MAIN_ITEMS:].sum(-1, dtype=np.int64)
    return MAIN_SLOTS - mains, SUB_SLOTS - subs
