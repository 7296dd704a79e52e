"""What every part needs of a device: recorded work, staging memory, allocators."""
