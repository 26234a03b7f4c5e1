"""The results of searches, computed from their ledgers and put into tables, notes and pages. It starts nothing and
trains nothing.
"""
