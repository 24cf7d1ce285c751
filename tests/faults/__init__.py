"""Fault injection: runs of the real `main.py` in processes of their own, killed at a chosen place, started again, compared.

    launch.py     one launch with one fault, a whole run with its chain of kills, its remaining processes
    compare.py    the differences between a killed run and an uninterrupted one
    spec.py       the specification of a launch, passed in its environment, and its records
    places.py     the named places of a run at which a kill can land
    aim.py        inside the launched processes: patches the places, counts hits, records, kills
    breaks.py     broken resumes, for negative controls: the comparison must detect each
    site/         put on PYTHONPATH of a launch; loads `aim.py` before the program starts
    settings.py   the configurations of the runs: everything with a state is on
    plan.py       the kills, spread over places, kinds of kills, processes and loader workers
    torture.py    `make torture`: executes a plan and prints a table by place
    kill_prepare.py   `make torture`, too: kills `linnaeus prepare` at random instants, and compares the stores
    fuzz.py       `make fuzz`: mutated settings, manifests, photographs (mutations.py) and archives (archives.py, damage.py)

Nothing of it is in the package: a launch is the command that a user types, with two environment variables.
"""
