"""What the compiler arranged: HLO modules from protocol buffers or text."""
