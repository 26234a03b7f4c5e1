"""Backbones and embedding heads, as plain torch modules. They know no method and no loss."""
