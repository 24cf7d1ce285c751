"""Write and read stores: folders of arrays and photographs, made from any data source for fast training (`linnaeus prepare`, data=store).

store_layout      lists the files of a store; reads and writes them
encoding          encodes a photograph for a store: as JPEG, raw pixels, or the original bytes
parts             writes blocks of photographs ("parts"), in several processes
prepare_store     is the command `linnaeus prepare`
store_files       reads photographs of a store from memory-mapped files
store_source      makes the data source of data=store
"""
