"""linnaeus: an exactly resumable trainer for hierarchical species classifiers and other research programs."""

__version__ = "0.1.0"
