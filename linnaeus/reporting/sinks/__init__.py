"""Send rows of metrics, while a run trains, to its files and to other destinations: CSV, TensorBoard, W&B, MLflow, trackio."""
