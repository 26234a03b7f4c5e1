"""Data sets: the store, what is in it, its splits, batches and augmentation."""
