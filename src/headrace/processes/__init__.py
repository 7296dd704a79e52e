"""Child processes: starting them, reporting from them, noticing that they hang, ending them."""
