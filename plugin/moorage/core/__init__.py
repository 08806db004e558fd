"""Decisions. Pure: values in, values out; no clock, randomness, environment, file, socket, thread or logger."""
