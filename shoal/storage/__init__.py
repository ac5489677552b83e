"""Bytes by key."""
