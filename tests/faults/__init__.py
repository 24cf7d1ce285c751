"""Fault injection: runs of the real `main.py` in processes of their own, killed at a chosen place, started again, compared.

    launch.py     one launch with a fault aimed at it, a whole run with its chain of kills, what is left of its processes
    compare.py    what the run that was killed and the one that was not differ in
    spec.py       what a launch is told through its environment, and what it writes down
    places.py     the named places of a run at which a kill can land
    aim.py        inside the launched processes: patches the places, counts hits, records, kills
    breaks.py     broken resumes, for negative controls: what a comparison that works must see
    site/         put on PYTHONPATH of a launch; loads `aim.py` before the program starts
    settings.py   the runs that are killed: everything with a state is on
    plan.py       which kills, spread over places, ways to die, processes and loader workers
    torture.py    `make torture`: carries a plan out and prints a table by place

Nothing of it is in the product: a launch is the command a user types, with two environment variables.
"""
