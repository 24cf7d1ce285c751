"""Analyse the features of a trained dictionary for its sections of report.html: samples on which they are active, effects on the outputs,
and classes that they detect.
"""
