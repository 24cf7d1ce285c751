"""Names of settings in other training programs, each with the setting of this program for the same purpose, for error messages."""

_LENGTH = "trainer.length=10epochs"
_STEPS = "trainer.length=5000steps"
_BATCH = "trainer.global_batch_size=64; the samples of one update, over all processes"
_PROCESSES = "launch=torchrun launch.processes=2, or torchrun --nproc-per-node=2 main.py"
_SCHEDULER = "lr_scheduler=cosine"
_WORKERS = "trainer.num_workers=4"
_PRECISION = "trainer.precision=bf16"
_RESUME = "run.init_from=RUN for its weights in a new run; the same command continues a run"
_CLIP = "trainer.max_grad_norm=1.0"
_WANDB = "logger.wandb=online"
_VALIDATE = "schedule.validate=[1epochs]"
_SAVE = "schedule.checkpoint=[1epochs]"
_NAME = "run.name=mine"
_ROOT = "run.root=outputs"
_DATA = "data=manifest data.path=photos.csv"
_ACCUMULATION = "trainer.micro_batch_size=16; the number of accumulation steps follows from the batch sizes"
_LANGUAGE = " with workload=language"

FOREIGN_NAMES = {
    **dict.fromkeys(("epochs", "epoch", "max_epochs", "num_epochs", "n_epochs", "total_epochs", "num_train_epochs"), _LENGTH),
    **dict.fromkeys(("steps", "max_steps", "max_iters", "num_steps", "total_steps", "iterations", "max_train_steps"), _STEPS),
    **dict.fromkeys(("batch_size", "batchsize", "bs", "train_batch_size", "global_batch", "batch"), _BATCH),
    **dict.fromkeys(("gpus", "n_gpus", "num_gpus", "devices", "num_processes", "nproc_per_node", "world_size", "strategy"), _PROCESSES),
    **dict.fromkeys(("accelerator", "cuda", "gpu"), "trainer.device=cuda"),
    **dict.fromkeys(("num_workers", "workers", "n_workers", "num_data_workers", "dataloader_num_workers"), _WORKERS),
    **dict.fromkeys(("scheduler", "sched", "lr_schedule", "lr_scheduler_type"), _SCHEDULER),
    **dict.fromkeys(("warmup_epochs", "warmup_steps", "warmup_iters"), "lr_scheduler.warmup=5%"),
    **dict.fromkeys(("lr", "learning_rate", "base_lr", "max_lr"), "optimizer.lr=1e-3"),
    **dict.fromkeys(("wd", "decay"), "optimizer.weight_decay=0.05"),
    **dict.fromkeys(("opt", "optim"), "optimizer=adamw"),
    **dict.fromkeys(("amp", "fp16", "bf16", "mixed_precision", "use_amp", "dtype"), _PRECISION),
    **dict.fromkeys(("accumulate_grad_batches", "gradient_accumulation_steps", "grad_accum", "accum_iter"), _ACCUMULATION),
    **dict.fromkeys(("gradient_clip_val", "clip_grad", "grad_clip", "clip_grad_norm"), _CLIP),
    **dict.fromkeys(("ckpt_path", "ckpt", "checkpoint_path", "resume_from", "resume_from_checkpoint", "checkpoint", "load_from"), _RESUME),
    **dict.fromkeys(("pretrained", "pretrained_weights", "weights"), "run.init_from=RUN, or model=timm with model.pretrained=true"),
    **dict.fromkeys(("train", "dry_run", "do_train", "fast_dev_run"), "plan=true to check without training, or debug=fdr for one step"),
    **dict.fromkeys(("wandb", "use_wandb", "report_to"), _WANDB),
    **dict.fromkeys(("tb", "use_tensorboard"), "logger.tensorboard=true"),
    **dict.fromkeys(("val_check_interval", "check_val_every_n_epoch", "eval_interval", "eval_steps", "validation_interval"), _VALIDATE),
    **dict.fromkeys(("save_interval", "save_steps", "save_every", "ckpt_interval", "checkpoint_interval"), _SAVE),
    **dict.fromkeys(("log_interval", "log_every", "logging_steps", "log_every_n_steps", "print_freq"), "schedule.log=[50steps]"),
    **dict.fromkeys(("output_dir", "out_dir", "output", "save_dir", "log_dir", "logdir"), _ROOT),
    **dict.fromkeys(("exp_name", "run_name", "experiment_name"), _NAME),
    **dict.fromkeys(("data_dir", "data_path", "dataset", "dataset_path", "root", "csv", "manifest"), _DATA),
    **dict.fromkeys(("img_size", "image_size", "input_size", "resolution"), "data.image_size=224"),
    **dict.fromkeys(("random_seed", "manual_seed"), "seed=0"),
    **dict.fromkeys(("arch", "architecture", "backbone", "model_name"), "model=timm model.backbone=convnext_tiny"),
    **dict.fromkeys(("ema", "ema_momentum", "model_ema"), "trainer.ema_decay=0.999"),
    **dict.fromkeys(("n_layer", "n_layers", "num_layers", "num_hidden_layers"), f"model.layers=6{_LANGUAGE}"),
    **dict.fromkeys(("n_head", "n_heads", "num_heads", "num_attention_heads"), f"model.heads=6{_LANGUAGE}"),
    **dict.fromkeys(("n_embd", "d_model", "hidden_size"), f"model.width=384{_LANGUAGE}"),
    **dict.fromkeys(("block_size", "context_length", "seq_len", "max_seq_len"), f"data.block=256{_LANGUAGE}"),
}


def foreign_hint(name: str) -> str | None:
    """Return the hint "use ..." for a setting or option of another training program, such as `--batch-size`; None if `name` is not
    known."""
    ours = FOREIGN_NAMES.get(name.lstrip("-").replace("-", "_").rpartition(".")[2])
    return ours and f"use {ours}"
