"""Read a trained dictionary: where its features are active, which outputs they change, which classes they stand for, and the page of it."""
