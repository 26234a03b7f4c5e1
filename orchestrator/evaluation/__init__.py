"""Metrics of embeddings, and what a model confuses. It reads arrays and knows no network, store or search."""
