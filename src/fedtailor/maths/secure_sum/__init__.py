"""Sums of which nobody sees the parts: pairwise masks with recovery of who dropped out.

The construction is SecAgg (Bonawitz et al., CCS 2017) on a graph of neighbours (SecAgg+,
Bell et al., CCS 2020), against a server that is curious but keeps to the protocol:

1. ``Member.advertise``: a client makes keys of its own for this one sum.
2. ``Member.share``: its neighbours get shares of two seeds, sealed for each of them.
3. ``Member.mask``: its integers leave under one mask of its own and one with each neighbour.
   The masks of two neighbours cancel in the sum.
4. ``Member.reveal``: of those whose numbers arrived, neighbours reveal shares of the mask of
   its own; of those who vanished, shares of the masks with others. Never both.

``Coordinator`` is the server's part. Ciphers, key agreement and secret sharing are those of
``cryptography`` and of pycryptodome (``primitives``).
"""
