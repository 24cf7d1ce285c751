"""Read the HDF5 files of the original linnaeus (data=labels_h5)."""
