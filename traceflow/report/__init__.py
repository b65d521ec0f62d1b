"""What people and scripts get to see: text, JSON, one HTML file, figures."""
