"""Read data sets in formats other than a manifest (a CSV or Parquet table). Each format has a reader, a module, and a name for data=NAME.

`manifest/records.py` describes readers. A reader renames the columns of a format to those of a manifest. Cleaning, splits and labels are
then done by the code for manifests.

Each package imports only packages above it in this list:

folders                 data=image_folder; files of photographs that a table lists
darwin_core_archive     data=darwin_core
camera_traps            data=camtrap_dp
inaturalist             data=inat_competition, data=inat_open_data
shards                  data=webdataset, data=hugging_face
h5                      data=labels_h5
"""
