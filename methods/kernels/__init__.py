"""Fused Triton kernels of some losses. Their modules import triton: only a training that asks for kernels does."""
