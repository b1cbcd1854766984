"""Predict what a layout of pretraining needs and how fast it is, and search for the best one. No torch."""
