"""Measure a run while it trains: times, memory, floating-point operations, alarms and rows of metrics."""
