"""List the photographs that a command reads, with their places and times."""
