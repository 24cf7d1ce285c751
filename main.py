"""linnaeus: train a hierarchical species classifier, or another research program on the same loop.

    python main.py                                   the embedded data, about two minutes on two CPU cores
    python main.py experiment=plants480              an experiment file of conf/experiment
    torchrun --nproc-per-node=2 main.py experiment=plants480
    python main.py plan=true                         the whole schedule, nothing trained
    python main.py -m seed=0,1,2                     a sweep
    python main.py --help                            every key with its type, value and meaning

The same command again continues the run, from any instant; a finished run says so. This file is the table of contents: it builds
the parts in the order they depend on each other and runs the epochs. The loop itself is `linnaeus/engine/epoch.py`.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from linnaeus.config import Config
    from linnaeus.engine import StopRequest

os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # exceptions reach us unprinted, so that a mistake can be one line

EXIT_FINISHED, EXIT_USAGE, EXIT_INTERRUPTED = 0, 2, 75


def run(config: Config, config_dir: str | None = None) -> int:
    """Train, validate, save and report as `config` says; returns the exit status. `config_dir` is where groups besides those of
    `conf/` came from. A request to stop that comes before there is anything to save ends it at once."""
    from linnaeus import engine
    from linnaeus.distributed import DistributedContext

    stop = engine.StopRequest(config.trainer.max_time)
    with stop.listening():
        in_order = False
        try:
            status = train(config, stop, config_dir)
            in_order = True
            return status
        except engine.StoppedBeforeTraining as request:
            print(f"stopped by {request} before the first update; the same command starts again", file=sys.stderr)
            return EXIT_INTERRUPTED
        finally:
            DistributedContext().shutdown(in_order)


def train(config: Config, stop: StopRequest, config_dir: str | None) -> int:
    """The flow: parts in order, the epochs, the end."""
    from linnaeus import engine, workloads
    from linnaeus.logging import setup_logging

    # -- processes, console, data ------------------------------------------------------------------------------------------
    context = engine.join_group(config)
    log = setup_logging(is_master=context.is_master, style=config.logger.console)
    engine.apply_process_settings(config)
    directory = engine.find_run_directory(config, context, config_dir)
    if directory.finished and not config.plan:
        log.info(directory.finished_note())
        return EXIT_FINISHED
    workload = workloads.build_workload(config)

    # -- the schedule: durations become steps, once ------------------------------------------------------------------------
    plan = engine.resolve_schedule(config, workload, context)

    # -- model, optimizer, loop state --------------------------------------------------------------------------------------
    training = engine.build_training(config, context, workload, plan, directory.path, stop)
    engine.check_named_checkpoint(training, directory)
    weights = engine.find_initial_weights(training, directory)
    record = engine.run_record(context, workload, weights)
    log.info(plan.text)
    if config.plan:  # by now all has been asked that may refuse a run
        directory.check(**record)
        plan.save(directory.path, context)
        log.info("schedule: %s", directory.path / "schedule.svg")
        return EXIT_FINISHED
    try:
        directory.start(**record)
        training.output = engine.open_outputs(config, context, directory, training)
        plan.save(directory.path, context)
        training.vitals.start(training.output.fail)

        # -- resume: continue from the newest checkpoint that verifies -----------------------------------------------------
        engine.restore(training, weights)

        # -- the epochs ----------------------------------------------------------------------------------------------------
        stop.wait_for_boundaries()
        with training.output.display:
            engine.finish_pending_validations(training)
            while training.unfinished():
                engine.train_one_epoch(training, training.progress.next_epoch)
            if training.stop_reason != "interrupted":
                engine.final_validations(training)

        # -- the end -------------------------------------------------------------------------------------------------------
        return EXIT_INTERRUPTED if engine.finish(training) == "interrupted" else EXIT_FINISHED
    except BaseException as error:
        engine.record_failure(training, error)  # raises in its place what brought this process down, if that was another one
        raise
    finally:
        engine.close(training)
        directory.release()


def hydra_main() -> int:
    """What Hydra says itself: `--cfg`, `--info` and the like."""
    import hydra

    from linnaeus.config import CONF

    hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(lambda composed: None)()
    return EXIT_FINISHED


def main() -> int:
    from linnaeus.config import user_errors
    from linnaeus.config.command_line import for_hydra, parse_command_line, refuse_sweep_under_launcher
    from linnaeus.config.load import compose_tree
    from linnaeus.config.shared import shared_config
    from linnaeus.distributed import die_with_launcher, launched
    from linnaeus.sweep import sweep

    if launched():
        die_with_launcher()
    with user_errors(EXIT_USAGE):
        asked = parse_command_line(sys.argv[1:])
        if asked.help:
            from linnaeus.config.help import print_help

            print_help(asked.overrides, asked.config_dir)
            return EXIT_FINISHED
        refuse_sweep_under_launcher(asked, os.environ)
        if asked.cfg or asked.info or asked.hydra_help or asked.shell_completion:
            sys.argv[1:] = for_hydra(sys.argv[1:], asked)
            return hydra_main()
        if asked.multirun:
            return sweep(asked)
        config = shared_config(lambda: compose_tree(asked.overrides, asked.config_dir))
        return run(config, asked.config_dir) if config.launch.name == "process" else sweep(asked)


if __name__ == "__main__":
    sys.exit(main())
