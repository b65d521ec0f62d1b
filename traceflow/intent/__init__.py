"""What must be done: meshes, how arrays are meant to lie on them, and what that implies."""
