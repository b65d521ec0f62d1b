"""Everything that was found, in formats that other tools read."""
