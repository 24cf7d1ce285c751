"""Connectivity that grows: weights that are missing at first and are connected while a model trains."""

from linnaeus.growth.build import build_growth
from linnaeus.growth.growth import Growth

__all__ = ["Growth", "build_growth"]
