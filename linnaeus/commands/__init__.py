"""Commands `linnaeus NAME ...`, which do everything but training: one thin module each, imported only when its command is called.

A command module has a function `main(arguments: Sequence[str] | None = None) -> int` that parses ordinary `--options`, prints one line on a
mistake of the user, and returns the exit status.
"""

COMMANDS = {  # module -> its line in `linnaeus --help`
    "generate": "continue a text with a trained language model",
    "complete": "complete a set of gear with a trained loadout model",
    "edit": "predict while features of a dictionary are edited",
    "predict": "name the taxa on photographs with a trained model",
    "embed": "write the features of photographs",
    "nearest": "find similar photographs, by their features",
    "calibrate": "find the thresholds for answers with a stated precision",
    "export": "write a trained model as a folder that stands alone",
    "serve": "predict over HTTP, with a page in the browser",
    "evaluate": "score a trained model on rows of its run, others or texts",
    "prepare": "write a source of photographs into a store for training",
    "doctor": "report what is wrong with a source of photographs",
    "report": "write report.html of a run, also of an interrupted one",
    "replay": "send the rows of runs to W&B, MLflow and others",
    "biota": "write the organisms of the demo as photographs",
}
