"""Analyse the features of a trained dictionary (samples where they are active, effects on the outputs, classes that they detect) for its
sections of report.html."""
