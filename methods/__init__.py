"""The built-in methods, one file per paper; every `Method` class in this package registers by itself."""
