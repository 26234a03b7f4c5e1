"""Backbones and embedding heads, as plain torch modules. They do not depend on methods or losses."""
