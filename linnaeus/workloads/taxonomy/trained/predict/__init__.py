"""The command `linnaeus predict`: answers for many photographs, and the formats of its files."""
