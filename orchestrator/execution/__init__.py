"""Where a trial runs: in this process, in a Ray actor, or in a group of workers. The only package that imports Ray; it
does not decide which trial runs.
"""
