"""A search from its plan to its last record: who drives it, what comes next, how it ends. It does not train, and
knows Ray only as a place where trials run.
"""
