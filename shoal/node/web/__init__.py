"""What people watch a node with: a page, live events and Prometheus metrics, and what they show.

Guarantees: everything is derived from the events of one node's log, live ones and those read back;
memory and answers are bounded, however long a run is and whatever a peer puts into its names.

Does not do: change anything. Nothing here is imported by the training side except `server`.
"""
