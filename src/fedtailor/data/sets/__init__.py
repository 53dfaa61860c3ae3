"""The named data sets: one file each, found by the catalogue, nothing to register.

A file holds all that is known about its data sets: where they come from (an ``Entry`` with files,
downloads, checksums and variants), the names of classes and clients, and how files become arrays.
At its end, ``LOADERS`` lists one ``Loader`` for every data set in it.
"""
