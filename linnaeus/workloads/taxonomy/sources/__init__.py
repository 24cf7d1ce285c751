"""Read data sets in formats other than a manifest (a CSV or Parquet table). Each format has a reader, a module, and a name for data=NAME.

`manifest/records.py` describes readers. A reader renames the columns of a format to those of a manifest. Cleaning, splits and labels are
then done by the code for manifests.
"""
