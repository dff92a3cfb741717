"""Samplers: tokens in, tokens and log-probabilities out, behind one Protocol (base.Sampler)."""
