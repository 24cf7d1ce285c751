"""Raise alarms (`alarm.py`) about problems of a run, from the numbers that the host reads for a row of metrics.

`running_scale.py` finds spikes of single updates, `conditions.py` lasting problems, `label_statistics.py` problems of the labels.
`monitor.py` combines their results and suppresses repeated alarms; its state is part of the checkpoint. No input depends on wall time, so a
resumed run raises the same alarms."""

from linnaeus.health.alarm import Alarm
from linnaeus.health.conditions import RowNumbers
from linnaeus.health.label_statistics import ValidationNumbers, label_statistics
from linnaeus.health.monitor import HealthMonitor, Updates

__all__ = ["Alarm", "HealthMonitor", "RowNumbers", "Updates", "ValidationNumbers", "label_statistics"]
