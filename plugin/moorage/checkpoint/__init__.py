"""Checkpoints that always restore, on any fsspec URL. JSON and npz only: nothing from a store is ever unpickled."""

from moorage.checkpoint.arrays import load_arrays, save_arrays
from moorage.checkpoint.state import BadState, pack, unpack
from moorage.checkpoint.store import Pointer, Store

__all__ = ["BadState", "Pointer", "Store", "load_arrays", "pack", "save_arrays", "unpack"]
