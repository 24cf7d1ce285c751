"""Read photographs that are members of large files: tar files (data=webdataset), Arrow and Parquet files (data=hugging_face)."""
