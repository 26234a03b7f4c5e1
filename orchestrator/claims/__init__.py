"""Hypotheses that are written down first, tested on pairs of seeds one after the other, and decided once.

`file` reads a claim's file, `design` says which trainings it asks for, `running` makes them, `sequential` decides after
each pair of seeds, `verdict` is what came out, `page` shows it, `shipped` are those that come with the package.
"""
