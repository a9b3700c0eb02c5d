"""Storage of results: paths, atomic writes, provenance records."""
