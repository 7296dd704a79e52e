"""How experience is gathered: slab, workers, placements, supervision."""
