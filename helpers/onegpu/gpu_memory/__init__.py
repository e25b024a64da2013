"""GPU memory of a fine-tune, three ways: by formula, simulated to the byte without a GPU, and measured."""
