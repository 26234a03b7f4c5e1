"""A search's files on a disk or an object store: journal, ledger, places, presence. It handles bytes and records, and
knows nothing about training.
"""
