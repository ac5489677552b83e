"""The peer-to-peer transport: a process of its own, and what the node uses to talk to it.

`client` is the node's side: it starts the process, restarts it and asks it. `__main__` is the
process; only `libp2p` in it imports hivemind, and nothing in the node's process does.

    client -> supervisor -> connection == frames over a socket pair == daemon -> libp2p, streams

`dht_records` says which records a DHT node takes, `signed_records` makes the two kinds that are the
network's own, `seeds` finds peers, `p2p_store` shows the network as an object store.
"""
