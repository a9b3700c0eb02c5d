"""Folders of published data: `archive` writes them, `restore` reads them."""
