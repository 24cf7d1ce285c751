"""Networks that read a set of tokens and a weapon."""
