"""Analyse the features of a trained dictionary for report.html: samples on which they are active, their effects on the outputs, and the
classes that they detect.
"""
