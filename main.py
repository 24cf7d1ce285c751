"""linnaeus: train a hierarchical species classifier, or another research program on the same loop.

    python main.py                                              the embedded data, about four minutes on two CPU cores
    python main.py experiment=photos data.path=photos.csv       your own photographs, with conf/experiment/photos.yaml
    torchrun --nproc-per-node=2 main.py experiment=photos data.path=photos.csv
    python main.py plan=true                                    print the whole schedule, train nothing
    python main.py -m seed=0,1,2                                a sweep
    python main.py --help                                       every key with its type, value and meaning
    python main.py --cfg job                                    the configuration as YAML

If a run is killed at any instant, the same command continues the run. This file is the table of contents: it builds the parts in the order
of their dependencies and runs the epochs. The loop is `linnaeus/train/loop.py`."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from linnaeus.config import Config
    from linnaeus.distributed.signals import StopRequest

EXIT_FINISHED, EXIT_USAGE, EXIT_INTERRUPTED = 0, 2, 75


def run(config: Config, config_dir: str | None = None) -> int:
    """Train, validate, save and report, as configured. Return the exit status: 0 for a finished run, 75 for an interrupted one.

    `config_dir` is a folder with further config groups, searched in addition to `conf/`; None: only `conf/`."""
    from linnaeus.distributed import DistributedContext
    from linnaeus.distributed.signals import StoppedBeforeTraining, StopRequest

    stop = StopRequest(config.trainer.max_time)
    with stop.listening():
        completed = False
        try:
            status = run_training(config, stop, config_dir)
            completed = True
            return status
        except StoppedBeforeTraining as request:
            print(f"stopped by {request} before the first update; the same command starts again", file=sys.stderr)
            return EXIT_INTERRUPTED
        finally:
            DistributedContext().shutdown(wait=completed)


def run_training(config: Config, stop: StopRequest, config_dir: str | None) -> int:
    """Build all parts of a run, train its epochs and write its results. Return the exit status; see `run`.

    `stop` is set by a signal or by `trainer.max_time`; the run then saves a checkpoint and ends."""
    from linnaeus.requirements import without_collection

    with without_collection():
        from linnaeus import train, workloads
    from linnaeus.config.environment import start_hiding
    from linnaeus.reporting import setup_logging

    # -- processes, console, data ------------------------------------------------------------------------------------------
    cores, times = train.CoreUse(), train.StartTimes()
    context = train.join_group(config)
    log = setup_logging(is_master=context.is_master, style=config.logger.console, hidden=start_hiding(config))
    train.apply_process_settings(config)
    directory = train.find_run_directory(config, context, config_dir)
    if directory.finished and not config.plan:
        log.info(directory.finished_message())
        return EXIT_FINISHED
    config = train.choose_at_start(config, context, directory)
    config = train.find_micro_batch(config, context, directory)  # `trainer.micro_batch_size=auto` becomes a number
    workload = workloads.build_workload(config)
    times.end_of("data")

    # -- schedule: turn durations into steps, once -------------------------------------------------------------------------
    plan = train.resolve_schedule(config, workload, context)

    # -- model, optimizer, loop state; everything that can be refused is refused here --------------------------------------
    training = train.build_training(config, context, workload, plan, directory.path, stop)
    times.end_of("model")
    cores.warn_if_busy(context)
    train.check_checkpoint(training, directory)
    weights = train.find_initial_weights(training, directory)
    record = train.run_record(context, workload, weights)
    plan.show(config.plan)
    if config.plan:
        directory.check(**record)
        if directory.is_new:
            plan.save(directory.path, context)
            log.info("the schedule is drawn in %s; nothing was trained: leave out plan=true to train", directory.path / "schedule.svg")
        else:
            log.info(train.describe_start(training, directory))
        return EXIT_FINISHED
    try:
        train.start_workers(training)  # forks, so before any thread is started
        directory.start(**record)
        training.output = train.open_outputs(config, context, directory, workload, plan.length.total_steps)
        plan.save(directory.path, context)
        training.watchdog.start(training.output.fail)

        # -- resume from the newest checkpoint that verifies ---------------------------------------------------------------
        train.restore(training, weights)
        times.end_of("checkpoint")
        training.start_times = times

        # -- epochs --------------------------------------------------------------------------------------------------------
        loss = functools.partial(train.describe_loss, training.progress, directory.checkpoints)  # without a reference to `training`
        stop.defer_to_step_end(training.output.display.notice, loss)
        with training.output.display:
            train.finish_pending_validations(training)
            while training.unfinished():
                train.train_one_epoch(training, training.progress.next_epoch)
            if not training.run.interrupted:
                train.final_validations(training)

        # -- end -----------------------------------------------------------------------------------------------------------
        return EXIT_INTERRUPTED if train.finish(training) == train.INTERRUPTED else EXIT_FINISHED
    except BaseException as error:
        train.record_failure(training, error)  # raises `ProcessLost` if another process has caused the error
        raise
    finally:
        train.close(training)
        directory.release()


def main() -> int:
    """Read the command line of `sys.argv`; print help, train, or run a sweep. Return the exit status.

    A mistake of the user prints one line and returns 2."""
    from linnaeus.requirements import obstacle

    if reason := obstacle():
        print(f"error: {reason}", file=sys.stderr)
        return EXIT_USAGE
    from linnaeus.config.command_line import parse_command_line
    from linnaeus.config.messages import user_errors
    from linnaeus.config.shared import shared_config
    from linnaeus.distributed import die_with_launcher, launched
    from linnaeus.rundir.repeat import compose_run, experiment_of_run

    if launched():
        die_with_launcher()
    with user_errors(EXIT_USAGE):
        options = parse_command_line(sys.argv[1:])
        if options.prints:
            from linnaeus.config.pages import page
            from linnaeus.streams import print_page

            text = page(options, lambda: compose_run(options.overrides, options.config_dir, missing_ok=True))
            print_page(text, prose=bool(options.help))
            return EXIT_FINISHED
        if not options.multirun:
            chosen = experiment_of_run(options.overrides)
            config = shared_config(lambda: compose_run(options.overrides, options.config_dir), chosen)
            if config.launch.name == "process":
                return run(config, options.config_dir)
        from linnaeus.sweep.run_sweep import sweep

        return sweep(options)


if __name__ == "__main__":
    sys.exit(main())
