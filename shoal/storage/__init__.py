"""Bytes by key: one interface, and the stores behind it.

`object_store` is the interface and its guarantees, `directory` the embedded default, `s3` for
buckets, `http` for what a validator serves, `memory` for tests, `meter` counts bytes, `errors` is
what can go wrong. `endpoints` says which servers may be connected to, `seaweed` runs an S3 server
here, `provider_check` finds out what a bucket can do. Knows no rounds and no peers.
"""
