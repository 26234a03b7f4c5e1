"""The self-contained HTML pages and their parts. They show what `report` computed and compute nothing of their own."""
