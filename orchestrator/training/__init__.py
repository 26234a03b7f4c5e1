"""One training: the loop and its parts, on one process or several. It knows no search, no Ray and no tracker."""
