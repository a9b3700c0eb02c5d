"""Where results are stored and how: paths, atomic writes, provenance records."""
