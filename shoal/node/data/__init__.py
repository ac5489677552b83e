"""From texts to the batches of an inner step: tokenizer, shards, assignment, batches."""
