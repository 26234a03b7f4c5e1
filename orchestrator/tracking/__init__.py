"""The projection of a journal into MLflow, its only door. A search does not depend on what it sends."""
