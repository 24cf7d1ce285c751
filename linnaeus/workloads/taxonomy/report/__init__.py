"""Sections of the taxonomy workload for report.html: accuracy, metadata, clades, confusions, calibration, classes and photographs."""
