"""Describe gear and weapons of Splatoon 3, and the tokens of a build."""
