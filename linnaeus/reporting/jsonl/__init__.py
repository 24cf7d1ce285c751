"""Write and read the JSONL files of a run: rows of metrics, reports, timings, alarms and batches."""
