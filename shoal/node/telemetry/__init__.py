"""What a node tells about itself: one report per round, and an event log derived from it."""
