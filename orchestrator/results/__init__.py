"""The public record: which method won what, at an equal tuning budget, in the folder `results` of the project.

`plan` says what rows have in common, `row` how one is kept, `adding` which searches become one, `standings` what
follows from all of them, and `page` shows it.
"""
