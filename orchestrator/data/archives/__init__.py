"""Readers of the benchmarks' archives and of people's own images, a file for each family. They list images and write
nothing.
"""
