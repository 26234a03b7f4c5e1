"""A search's files on a disk or an object store: journal, ledger, places, presence. It knows bytes and records, and
nothing of training.
"""
