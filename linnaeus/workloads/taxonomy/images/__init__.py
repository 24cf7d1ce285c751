"""Find, read, check and decode the image files of photographs.

image_files, url_files         check and read image files in folders, and by URL
missing_files                  find a file whose name looks like that of a missing one
integrity, jpeg, decoding      from bytes to pixels; damaged files are errors
resizing                       smaller pixels
photographs, image_cache       read photographs during training, and keep those that fit into memory
contents                       find replaced photographs, and copies of training photographs in validation
quarantine                     record photographs that cannot be decoded
process_pool                   read many photographs in several processes
"""
