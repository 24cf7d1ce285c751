"""Run sweeps, several runs in one command: `python main.py -m ...`. Also start a single run by a launcher: `python main.py
launch=torchrun`.

The parent process trains nothing and does not import torch. It parses the command line (`request.py`, `parameters.py`), composes and checks
the trials (`trial.py`, `trial_source.py`; `optuna_study.py` proposes the trials one by one), starts each trial as a run by a launcher
(`run_sweep.py`, `trial_runner.py`), and writes tables of the results (`trial_results.py`, `sweep_files.py`, `picture.py`)."""
