"""The prepared store: a folder of arrays and photographs that `linnaeus prepare` makes from any source, and that `data=store` reads.

store_layout      the files of a store, and their reading and writing
encoding          a photograph as it is stored: JPEG, raw pixels, or the original bytes
parts             blocks of photographs that are prepared by several processes, each written once
prepare_store     the command: all parts, then the arrays, then the account
store_files       the photographs of a store, mapped into memory
store_source      `build_source` of `data=store`
"""
