"""A search from its plan to its last record: its driver, the next trial, its end. It does not train, and knows Ray only
as a place where trials run.
"""
