"""Precision of forward and backward passes: fp32 master weights, in bf16 by autocast or, with ranks, by FSDP."""

import torch

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def precision_on(device: torch.device, precision: str) -> str:
    """`precision`, or for "auto" bfloat16 where the processor multiplies bf16 matrices, else float32."""
    if precision != "auto":
        return precision
    if device.type == "cuda":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        native = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return "bfloat16" if native else "float32"


def autocast(device: torch.device, dtype: torch.dtype) -> torch.autocast:
    """Context manager: matrix products and attention in `dtype`."""
    return torch.autocast(device.type, dtype, enabled=dtype != torch.float32)
