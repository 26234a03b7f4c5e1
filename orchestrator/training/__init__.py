"""One training: the loop and its parts, on one process or several. It does not depend on searches, Ray or trackers."""
