"""Matrix products that are cut into rounds, so that blocks travel between devices while others are multiplied."""
