"""A page as a value: written to a file, or shown by a notebook."""

import html
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Page:
    """A page that needs no network."""

    html: str

    def write(self, path: str | Path) -> Path:
        """Write it to a file."""
        from orchestrator.storage.atomic import write_whole

        write_whole(Path(path), self.html.encode())
        return Path(path)

    def __repr__(self) -> str:
        return f"<page of {len(self.html) / 1e6:.1f} MB: .write(FILE) writes it, a notebook shows it>"

    def _repr_html_(self) -> str:
        frame = "width: 100%; height: 80vh; border: 0"
        return f'<iframe srcdoc="{html.escape(self.html, quote=True)}" style="{frame}"></iframe>'
