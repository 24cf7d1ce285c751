"""linnaeus: train a hierarchical species classifier, or another research program on the same loop.

    python main.py                                   the embedded data, about two minutes on two CPU cores
    python main.py experiment=plants480              an experiment file of conf/experiment
    torchrun --nproc-per-node=2 main.py experiment=plants480
    python main.py plan=true                         the whole schedule, nothing trained
    python main.py -m seed=0,1,2                     a sweep
    python main.py --help                            every key with its type, value and meaning

The same command again continues the run, from any instant; a finished run says so. This file is the table of contents: it builds
the parts in the order they depend on each other and runs the epochs. The loop itself is `linnaeus/train/loop.py`.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from linnaeus.config import Config
    from linnaeus.distributed.signals import StopRequest

os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # exceptions reach us unprinted, so that a mistake can be one line

EXIT_FINISHED, EXIT_USAGE, EXIT_INTERRUPTED = 0, 2, 75


def run(config: Config, config_dir: str | None = None) -> int:
    """Train, validate, save and report as `config` says. Return the exit status. `config_dir` is the folder of config groups besides
    `conf/`. A request to stop that comes before there is anything to save ends the run at once."""
    from linnaeus.distributed import DistributedContext
    from linnaeus.distributed.signals import StoppedBeforeTraining, StopRequest

    stop = StopRequest(config.trainer.max_time)
    with stop.listening():
        in_order = False
        try:
            status = train(config, stop, config_dir)
            in_order = True
            return status
        except StoppedBeforeTraining as request:
            print(f"stopped by {request} before the first update; the same command starts again", file=sys.stderr)
            return EXIT_INTERRUPTED
        finally:
            DistributedContext().shutdown(in_order)


def train(config: Config, stop: StopRequest, config_dir: str | None) -> int:
    """Run the flow: parts in order, the epochs, the end. Return the exit status."""
    from linnaeus import train as steps
    from linnaeus import workloads
    from linnaeus.reporting import setup_logging

    # -- processes, console, data ------------------------------------------------------------------------------------------
    context = steps.join_group(config)
    log = setup_logging(is_master=context.is_master, style=config.logger.console)
    steps.apply_process_settings(config)
    directory = steps.find_run_directory(config, context, config_dir)
    if directory.finished and not config.plan:
        log.info(directory.finished_note())
        return EXIT_FINISHED
    workload = workloads.build_workload(config)

    # -- the schedule: durations become steps, once ------------------------------------------------------------------------
    plan = steps.resolve_schedule(config, workload, context)

    # -- model, optimizer, loop state --------------------------------------------------------------------------------------
    training = steps.build_training(config, context, workload, plan, directory.path, stop)
    steps.check_named_checkpoint(training, directory)
    weights = steps.find_initial_weights(training, directory)
    record = steps.run_record(context, workload, weights)
    log.info(plan.text)
    if config.plan:  # everything that may refuse a run has been checked by now
        directory.check(**record)
        plan.save(directory.path, context)
        log.info("schedule: %s", directory.path / "schedule.svg")
        return EXIT_FINISHED
    try:
        directory.start(**record)
        training.output = steps.open_outputs(config, context, directory, training)
        plan.save(directory.path, context)
        training.watchdog.start(training.output.fail)

        # -- resume: continue from the newest checkpoint that verifies -----------------------------------------------------
        steps.restore(training, weights)

        # -- the epochs ----------------------------------------------------------------------------------------------------
        stop.wait_for_step_end()
        with training.output.display:
            steps.finish_pending_validations(training)
            while training.unfinished():
                steps.train_one_epoch(training, training.progress.next_epoch)
            if not training.run.interrupted:
                steps.final_validations(training)

        # -- the end -------------------------------------------------------------------------------------------------------
        return EXIT_INTERRUPTED if steps.finish(training) == steps.INTERRUPTED else EXIT_FINISHED
    except BaseException as error:
        steps.record_failure(training, error)  # may raise an error that names the process that brought this one down
        raise
    finally:
        steps.close(training)
        directory.release()


def hydra_main() -> int:
    """What Hydra says itself: `--cfg`, `--info` and the like."""
    import hydra

    from linnaeus.config import CONF

    hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(lambda composed: None)()
    return EXIT_FINISHED


def main() -> int:
    from linnaeus.config.command_line import for_hydra, parse_command_line, refuse_sweep_under_launcher
    from linnaeus.config.load import typed_config
    from linnaeus.config.messages import user_errors
    from linnaeus.config.shared import shared_config
    from linnaeus.distributed import die_with_launcher, launched
    from linnaeus.rundir.repeat import compose_run
    from linnaeus.sweep import sweep

    if launched():
        die_with_launcher()
    with user_errors(EXIT_USAGE):
        asked = parse_command_line(sys.argv[1:])
        if asked.help:
            from linnaeus.config.help import print_help

            print_help(typed_config(compose_run(asked.overrides, asked.config_dir, missing_ok=True)))
            return EXIT_FINISHED
        refuse_sweep_under_launcher(asked, os.environ)
        if asked.cfg or asked.info or asked.hydra_help or asked.shell_completion:
            sys.argv[1:] = for_hydra(sys.argv[1:], asked)
            return hydra_main()
        if asked.multirun:
            return sweep(asked)
        config = shared_config(lambda: compose_run(asked.overrides, asked.config_dir))
        return run(config, asked.config_dir) if config.launch.name == "process" else sweep(asked)


if __name__ == "__main__":
    sys.exit(main())
