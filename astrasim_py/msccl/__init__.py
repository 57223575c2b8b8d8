"""MSCCL-IR, the XML that MSCCL-style runtimes execute: in and out."""
