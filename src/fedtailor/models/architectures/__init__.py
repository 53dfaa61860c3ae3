"""The papers' backbones, one file for each family: found by looking into this folder.

A file names its networks in ``ARCHITECTURES``, with the learning rate that goes with each.
"""
