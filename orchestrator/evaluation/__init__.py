"""Metrics of embeddings, and what a model confuses. It reads arrays and depends on no network, store or search."""
