"""Make the sections of the taxonomy workload in report.html: summary, metadata, confusions, tree, classes, calibration, photographs."""
