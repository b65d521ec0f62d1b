"""What explains: one module per question, one public function each."""
