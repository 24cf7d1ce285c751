"""Find trouble in a run from the numbers that the host reads for a row of metrics, and say it once (`alarm.py`).

`running_scale.py` finds spikes of single updates, `conditions.py` lasting trouble. `monitor.py` combines both with a memory that is part of
the checkpoint. Everything here is a function of the configuration, so a resumed run raises the same alarms.
"""

from linnaeus.health.alarm import Alarm
from linnaeus.health.conditions import RowNumbers
from linnaeus.health.monitor import HealthMonitor, Updates

__all__ = ["Alarm", "HealthMonitor", "RowNumbers", "Updates"]
