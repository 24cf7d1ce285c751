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

os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # exceptions reach us unprinted, so that a mistake can be one line

EXIT_FINISHED, EXIT_USAGE, EXIT_INTERRUPTED = 0, 2, 75


def run(config: Config) -> int:
    """Train, validate, save and report as `config` says; returns the exit status."""
    from linnaeus import engine, workloads
    from linnaeus.checkpoint import find_resume_point
    from linnaeus.distributed import DistributedContext
    from linnaeus.logging import setup_logging

    # -- processes, console, data ------------------------------------------------------------------------------------------
    context = DistributedContext().initialize(device=config.trainer.device)
    log = setup_logging(is_master=context.is_master, style=config.logger.console)
    engine.apply_process_settings(config, context)
    directory = engine.find_run_directory(config, context)
    if directory.finished and not config.plan:
        log.info(directory.finished_note())
        return EXIT_FINISHED
    workload = workloads.build_workload(config)

    # -- the schedule: durations become steps, once ------------------------------------------------------------------------
    plan = engine.resolve_schedule(config, workload, context)
    if config.plan:
        plan.save(directory.path, context)
        log.info("%s\nschedule: %s", plan.text, directory.path / "schedule.svg")
        return EXIT_FINISHED

    # -- model, optimizer, loop state --------------------------------------------------------------------------------------
    training = engine.build_training(config, context, workload, plan, directory.path)
    engine.check_named_checkpoint(training)
    log.info(plan.text)
    try:
        directory.start(**engine.run_record(context, workload))
        training.output = engine.open_outputs(config, context, directory, training)
        plan.save(directory.path, context)

        # -- resume: continue from the newest checkpoint that verifies -----------------------------------------------------
        point = find_resume_point(
            config.run.resume, directory.checkpoints, is_master=context.is_master, broadcast_object=context.broadcast_object
        )
        engine.restore(training, point)

        # -- the epochs ----------------------------------------------------------------------------------------------------
        with engine.stop_on_signals(training), training.output.display:
            engine.finish_pending_validations(training)
            while training.unfinished():
                engine.train_one_epoch(training, training.progress.next_epoch)
            if training.stop_reason != "interrupted":
                engine.final_validations(training)

        # -- the end -------------------------------------------------------------------------------------------------------
        return EXIT_INTERRUPTED if engine.finish(training) == "interrupted" else EXIT_FINISHED
    except BaseException as error:
        engine.record_failure(training, error)
        raise
    finally:
        engine.close(training)
        directory.release()
        context.shutdown()


def hydra_main() -> int:
    """Compose the configuration with Hydra and run it; under `-m` the last job's status."""
    import hydra
    from omegaconf import DictConfig, OmegaConf

    from linnaeus.config import CONF, typed_config, user_errors

    status = [EXIT_FINISHED]

    @hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")
    def job(composed: DictConfig) -> None:
        with user_errors(EXIT_USAGE):  # here already: Hydra would add a line of its own to an exception of a job
            status[0] = run(typed_config(OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)))

    job()
    return status[0]


def main() -> int:
    from linnaeus.config import user_errors
    from linnaeus.config.command_line import for_hydra, parse_command_line, refuse_sweep_under_launcher

    with user_errors(EXIT_USAGE):
        asked = parse_command_line(sys.argv[1:])
        if asked.help:
            from linnaeus.config.help import print_help

            print_help(asked.overrides, asked.config_dir)
            return EXIT_FINISHED
        refuse_sweep_under_launcher(asked, os.environ)
        sys.argv[1:] = for_hydra(sys.argv[1:], asked)
        return hydra_main()


if __name__ == "__main__":
    sys.exit(main())
