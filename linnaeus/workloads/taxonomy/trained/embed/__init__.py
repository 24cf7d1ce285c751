"""The commands `linnaeus embed` and `linnaeus nearest`: features of photographs, and searches among them."""
