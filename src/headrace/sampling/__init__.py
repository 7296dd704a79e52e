"""How experience is gathered: memory of a run, actors, workers, placements, supervision."""
