"""What every environment has: the contract with the engine, spaces, the registry."""
