"""Read Darwin Core Archives (data=darwin_core), and the columns that describe an occurrence."""
