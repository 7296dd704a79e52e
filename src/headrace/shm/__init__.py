"""What processes share: memory, queues, words, tables."""
