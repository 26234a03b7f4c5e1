"""Readers of the benchmarks' archives and of users' own images, one file per family. They list images and write
nothing.
"""
