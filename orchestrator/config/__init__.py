"""Experiment and search files: their types, their rules, and how presets and options are put into them. Nothing here
runs anything.
"""
