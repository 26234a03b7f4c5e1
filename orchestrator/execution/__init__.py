"""Where a trial runs: in this process, in a Ray actor, or by a group of workers. The only package that imports Ray;
it decides nothing about which trial runs.
"""
