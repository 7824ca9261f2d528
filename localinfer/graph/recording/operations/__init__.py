"""The operations of the graph builder by kind: each file records the ops of one kind."""
