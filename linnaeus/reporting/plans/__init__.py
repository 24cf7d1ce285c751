"""Show the schedule of a run as text and as a picture, and compare the schedules of two configurations."""
