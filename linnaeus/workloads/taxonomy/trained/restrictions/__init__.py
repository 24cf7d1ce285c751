"""Find the taxa of a model that lists, tables and options name, and restrict predictions to them."""
