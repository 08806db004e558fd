"""The published benchmarks. One language for all: `moorage.bench.result`."""
