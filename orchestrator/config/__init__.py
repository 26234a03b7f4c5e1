"""Experiment and search files: their types and rules, and how presets and options are merged into them. Nothing here
runs anything.
"""
